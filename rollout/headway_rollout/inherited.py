"""Selects the environment variables of the rollout server that its engine inherits: a pure function.

The artifact store's Secret adds all its entries to the server's environment, under names that nobody knows in
advance. So the engine inherits only the variables that this module lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headway_api.names import ENV_LOCAL_JOB, ENV_LOCAL_POD

NAMES: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "HOSTNAME", "LANG", "LANGUAGE", "TZ", "TERM"),
        *("TMPDIR", "TMP", "TEMP", "NO_COLOR", "FORCE_COLOR", "DO_NOT_TRACK", "VIRTUAL_ENV"),
        *("http_proxy", "https_proxy", "no_proxy", "all_proxy"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *(ENV_LOCAL_JOB, ENV_LOCAL_POD),
        *("CC", "CXX", "MAX_JOBS", "LOCAL_RANK"),
    }
)
"""Variables of the operating system, its certificates and its compilers."""
BEGINNINGS: Final = (
    *("LC_", "LD_", "XDG_", "PYTHON", "MALLOC_"),
    *(
        "CUDA_",
        "CUDNN_",
        "CUBLAS_",
        "NVIDIA_",
        "NVCC_",
        "NVSHMEM_",
        "HIP_",
        "HSA_",
        "ROCR_",
        "ROCM_",
        "MIOPEN_",
    ),
    *("NCCL_", "RCCL_", "GLOO_", "UCX_", "FI_", "IBV_", "TP_SOCKET_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "DNNL_", "ONEDNN_"),
    *("TORCH", "PYTORCH_", "TRITON_", "FLASHINFER_", "FLASH_", "DG_", "DEEP_EP_", "TVM_"),
    *("VLLM_", "RAY_", "HF_", "TRANSFORMERS_", "TOKENIZERS_", "SAFETENSORS_", "HUGGINGFACE_HUB_CACHE"),
)
"""Prefixes of the variables of vLLM and of the libraries that it uses."""
SECRET: Final = ("_API_KEY", "_ACCESS_KEY", "_TOKEN", "_TOKEN_PATH", "_SECRET", "_PASSWORD", "_CREDENTIALS")
"""Suffixes of variables with a secret, such as VLLM_API_KEY and HF_TOKEN. They are never inherited."""


def inherited(parent: Mapping[str, str]) -> dict[str, str]:
    """The variables of the environment `parent` that the engine may inherit."""
    return {name: value for name, value in parent.items() if _may(name)}


def _may(name: str) -> bool:
    return (name in NAMES or name.startswith(BEGINNINGS)) and not name.endswith(SECRET)
