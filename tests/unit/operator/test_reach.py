"""Which addresses, Secrets and accounts a job may name, and how a platform restricts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from observed_cluster import PLATFORM, eval_job, job
from pydantic import ValidationError

from headway_api.spec.evaluation import RLEvalJob
from headway_api.spec.training import RLTrainingJob
from headway_operator import addresses
from headway_operator.config import OperatorConfig, Policy, load
from headway_operator.plan import admission
from headway_operator.plan.context import Context
from headway_operator.plan.reading import SpecRefusal, parse

URL = "spec.agent.http.url"
CALLBACK = "spec.agent.http.callbackUrl"
ENDPOINT = "spec.candidates[big].endpoint.url"
JUDGE = "spec.judges[strict].endpoint.url"
STORE = "spec.output.endpointUrl"
TRACKING = "spec.tracking.mlflow.uri"
TRACES = "spec.tracking.otlp.endpoint"
SERVER = "10.96.0.1"

NOBODYS = {
    "link-local": ["169.254.169.254", "169.254.1.1:8080", "[fe80::1]", "[::ffff:169.254.169.254]"],
    "spelled": ["2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "169.254.169.254."],
    "embedded": ["user:word@169.254.169.254", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::1]"],
    "metadata": ["metadata.google.internal", "METADATA", "100.100.100.200", "[fd00:ec2::254]"],
    "named": ["metadata.goog", "metadata.azure.internal", "instance-data.ec2.internal", "[fd00:ec2::23]"],
    "ip6": ["ip6-localhost", "IP6-loopback"],
    "nat64": [
        "[64:ff9b:1::a9fe:a9fe]",
        "[64:ff9b:1:a9fe:a9:fe00::]",
        "[64:ff9b:1:a9:fe:a9fe::]",
        "[64:ff9b:1::a9:fea9:fe00:0]",
    ],
    "loopback": ["127.0.0.1:8100", "localhost", "a.localhost", "127.1", "0", "0.0.0.0", "[::1]", "[::]"],
    "api-server": ["kubernetes.default.svc", "kubernetes", "kubernetes.default.svc.cluster.local", SERVER],
    "unclear": ["169.254.169.254\\@acme.dev", "１６９.254.169.254", "%31.2.3.4", "[::1", "a b"],
}
HOSTS = [host for hosts in NOBODYS.values() for host in hosts]
EVERYBODYS = [
    "agent",
    "agent.team.svc:8000",
    "10.0.0.7",
    "api.acme.dev",
    "[fd12::7]:80",
    "[64:ff9b:1::a00:7]",
    "kubernetes.acme.dev",
]


def refused(policy: Policy, *, namespace: str = "team", **spec: Any) -> list[str]:
    """The refusals of a job with these blocks, which is of the kind that has these blocks."""
    raw = eval_job(**spec) if "candidates" in spec else job(**spec)
    raw["metadata"]["namespace"] = namespace
    found = parse(RLEvalJob if "candidates" in spec else RLTrainingJob, raw)
    assert not isinstance(found, SpecRefusal), found
    context = Context(found, PLATFORM.model_copy(update={"policy": policy}))
    judge = admission.of_evaluation if "candidates" in spec else admission.of_training
    return judge(context)


def named(field: str, url: str) -> dict[str, Any]:
    if field == STORE:
        return {"output": {"uri": "s3://b/o", "endpointUrl": url}}
    if field == TRACES:
        return {"tracking": {"otlp": {"endpoint": url}}}
    if field == TRACKING:
        return {"tracking": {"mlflow": {"uri": url}}}
    if field == ENDPOINT:
        return {"candidates": [{"name": "big", "endpoint": {"url": url, "model": "m"}}]}
    if field == JUDGE:
        return {"judges": [{"name": "strict", "endpoint": {"url": url, "model": "m"}}]}
    if field == CALLBACK:
        return {"agent": {"http": {"url": "http://agent", "callbackUrl": url}}}
    return {"agent": {"http": {"url": url}}}


DEFAULT = Policy(api_server=SERVER)


@pytest.mark.parametrize("field", [URL, CALLBACK, ENDPOINT, JUDGE, STORE, TRACKING, TRACES])
@pytest.mark.parametrize("host", HOSTS)
def test_no_job_may_name_the_platforms_own_addresses(field: str, host: str) -> None:
    [message] = refused(DEFAULT, **named(field, f"http://{host}/latest"))
    assert message.startswith(f"{field}: ")
    assert "; write " in message


@pytest.mark.parametrize("field", [URL, CALLBACK, ENDPOINT, JUDGE, STORE, TRACKING, TRACES])
@pytest.mark.parametrize("host", EVERYBODYS)
def test_every_job_may_name_other_addresses(field: str, host: str) -> None:
    assert refused(DEFAULT, **named(field, f"http://{host}/v1")) == []


def test_the_service_of_the_api_server_is_not_an_agent() -> None:
    agent = {"http": {"service": {"name": "kubernetes", "port": 443}}}
    [message] = refused(DEFAULT, namespace="default", agent=agent)
    assert message.startswith("spec.agent.http.service.name: kubernetes is the API server; ")
    assert refused(DEFAULT, agent=agent) == []


LISTED = Policy(agent_urls=("https://*.acme.dev/agents", "http://agent.team.svc:8000"), api_server=SERVER)


@pytest.mark.parametrize(
    ("url", "taken"),
    [
        ("https://a.acme.dev/agents", True),
        ("https://a.b.acme.dev:443/agents/1", True),
        ("http://agent.team.svc:8000/any", True),
        ("https://acme.dev/agents", False),
        ("https://a.acme.dev/agents-of-others", False),
        ("https://a.acme.dev/agents/../admin", False),
        ("https://a.acme.dev/agents/%2e%2e/admin", False),
        ("https://a.acme.dev/agents/..;/admin", False),
        ("https://a.acme.dev/agents/..;a=b/admin", False),
        ("https://a.acme.dev/agents/%2E.%3B/admin", False),
        ("https://a.acme.dev/agents/..%5cadmin", False),
        ("https://a.acme.dev/agents/..%5Cadmin", False),
        ("https://a.acme.dev/agents/..%252fadmin", False),
        ("https://a.acme.dev/agents/%252e%252e/admin", False),
        ("https://a.acme.dev/agents/..a;b/c", True),
        ("http://a.acme.dev/agents", False),
        ("https://a.acme.dev:8443/agents", False),
        ("https://evil.dev/.acme.dev/agents", False),
        ("https://a.acme.dev@evil.dev/agents", False),
        ("https://evilacme.dev/agents", False),
        ("http://agent.team.svc/any", False),
    ],
)
@pytest.mark.parametrize("field", [URL, ENDPOINT])
def test_a_platform_lists_the_addresses_of_agents(field: str, url: str, taken: bool) -> None:
    refusals = refused(LISTED, **named(field, url))
    if taken:
        assert refusals == []
    else:
        assert [text.partition(": ")[0] for text in refusals] == [field]
        assert "https://*.acme.dev/agents, http://agent.team.svc:8000" in refusals[0]
        assert "policy.agentUrls" in refusals[0]


@pytest.mark.parametrize("field", [CALLBACK, STORE, TRACKING])
def test_a_list_of_agents_does_not_restrict_other_addresses(field: str) -> None:
    spec = named(field, "https://other.dev")
    spec.setdefault("agent", {"http": {}})["http"]["url"] = "http://agent.team.svc:8000"
    assert refused(LISTED, **spec) == []


@pytest.mark.parametrize(
    ("pattern", "opens"), [("http://169.254.20.10", True), ("http://*.169.254.20.10", False)]
)
def test_an_address_that_is_listed_whole_is_open(pattern: str, opens: bool) -> None:
    refusals = refused(Policy(agent_urls=(pattern,)), **named(URL, "http://169.254.20.10/x"))
    assert (refusals == []) is opens


@pytest.mark.parametrize(
    "wrong", ["*", "acme.dev", "ftp://acme.dev", "https://*", "https://a*.dev", "https://a?b"]
)
def test_an_invalid_url_pattern_is_refused(wrong: str) -> None:
    with pytest.raises(ValidationError, match="HOST may begin with"):
        Policy(agent_urls=(wrong,))


@given(st.text(max_size=30))
def test_any_text_is_parsed_as_a_url_or_refused(text: str) -> None:
    found = addresses.read(f"http://{text}")
    assert found is None or isinstance(addresses.forbidden(found.host, SERVER), str | None)


@given(
    st.integers(0, 2**16 - 1),
    st.sampled_from(["{0}.{1}.{2}.{3}", "{0}.{1}.{4}", "{5}", "0x{5:x}", "[::ffff:{0}.{1}.{2}.{3}]"]),
)
def test_each_link_local_address_is_known_in_each_spelling(low: int, form: str) -> None:
    parts = (169, 254, low >> 8, low & 255)
    found = addresses.read("http://" + form.format(*parts, low, (169 << 24) + (254 << 16) + low))
    assert found is not None
    assert addresses.forbidden(found.host) is not None


SECRETS: dict[str, dict[str, Any]] = {
    "spec.output.secretRef.name": {"output": {"uri": "s3://b/o", "secretRef": {"name": "others"}}},
    "spec.output.roleSecretRefs.learner.name": {
        "output": {"uri": "s3://b/o", "roleSecretRefs": {"learner": {"name": "others"}}}
    },
    "spec.imagePullSecrets[0].name": {"imagePullSecrets": [{"name": "others"}]},
    "spec.candidates[big].endpoint.secretRef.name": {
        "candidates": [
            {"name": "big", "endpoint": {"url": "http://m", "model": "m", "secretRef": {"name": "others"}}}
        ]
    },
    "spec.judges[strict].secretRef.name": {
        "judges": [
            {
                "name": "strict",
                "endpoint": {"url": "http://m", "model": "m"},
                "secretRef": {"name": "others"},
            }
        ]
    },
}


def learner(**spec: Any) -> dict[str, Any]:
    return {"learner": {"podTemplate": {"spec": spec}}}


def variable(**source: Any) -> dict[str, Any]:
    return learner(containers=[{"name": "learner"} | source])


IN_TEMPLATES: dict[str, dict[str, Any]] = {
    "volumes[0].secret.secretName": learner(volumes=[{"name": "v", "secret": {"secretName": "others"}}]),
    "volumes[0].csi.nodePublishSecretRef.name": learner(
        volumes=[{"name": "v", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "others"}}}]
    ),
    "volumes[0].csi.volumeAttributes.secretName": learner(
        volumes=[{"name": "v", "csi": {"driver": "d", "volumeAttributes": {"secretName": "others"}}}]
    ),
    "containers[0].env[0].valueFrom.secretKeyRef.name": variable(
        env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "others", "key": "k"}}}]
    ),
    "containers[0].envFrom[0].secretRef.name": variable(envFrom=[{"secretRef": {"name": "others"}}]),
    "imagePullSecrets[0].name": learner(imagePullSecrets=[{"name": "others"}]),
}
SECRETS |= {f"spec.learner.podTemplate.spec.{path}": spec for path, spec in IN_TEMPLATES.items()}


@pytest.mark.parametrize("field", SECRETS)
def test_a_platform_lists_the_secrets_that_jobs_may_name(field: str) -> None:
    spec = SECRETS[field]
    assert refused(Policy(), **spec) == []
    assert refused(Policy(secret_names=("team-*", "oth*")), **spec) == []
    refusals = refused(Policy(secret_names=("team-*", "other")), **spec)
    assert refusals == [
        f"{field}: jobs may not name Secret others on this platform; name one of team-*, other, or have it "
        "added to policy.secretNames of the chart"
    ]


@pytest.mark.parametrize("spec", [{}, {"candidates": [{"name": "a", "model": {"base": "hf://o/m"}}]}])
def test_a_platform_lists_the_accounts_that_jobs_may_name(spec: Any) -> None:
    named = {**spec, "serviceAccountName": "cluster-admins"}
    assert refused(Policy(), **named) == []
    assert refused(Policy(service_accounts=("jobs-*", "cluster*")), **named) == []
    assert refused(Policy(service_accounts=("jobs-*",)), **spec) == []
    assert refused(Policy(service_accounts=("jobs-*", "s3")), **named) == [
        "spec.serviceAccountName: jobs may not name cluster-admins on this platform; name one of jobs-*, "
        "s3, leave it out, or have it added to policy.serviceAccounts of the chart"
    ]


def test_the_operator_knows_the_api_server_by_its_pod(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    images = dict.fromkeys(("coordinator", "broker", "learner", "rollout"), "i:1")
    file.write_text(yaml.safe_dump({"images": images}))
    environ = {"HEADWAY_OPERATOR_CONFIG": str(file), "KUBERNETES_SERVICE_HOST": SERVER}
    assert load(environ).policy == OperatorConfig.model_fields["policy"].default.model_copy(
        update={"api_server": SERVER}
    )
