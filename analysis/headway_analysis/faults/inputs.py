"""Faults of a job's inputs: rows, base model, and weights to start from."""

from __future__ import annotations

from headway_analysis.faults.definition import Fault, FaultKind, Stage, in_preflight, retried

FAULTS: tuple[Fault, ...] = (
    in_preflight(
        "no-price-book",
        FaultKind.MANIFEST,
        "PriceBookMissing",
        "The namespace has no ConfigMap with the name in spec.priceBook.",
        "spec.priceBook: there is no ConfigMap no-such-book with key prices.yaml in the job's namespace; "
        "create it, or remove spec.priceBook",
    ),
    in_preflight(
        "negative-price",
        FaultKind.MANIFEST,
        "PriceBookInvalid",
        "The price book has a negative price.",
        "spec.priceBook: ConfigMap odd-book, key prices.yaml: entries[0].prices.sample: '-1' is not a "
        'price; write US dollars of 0 or more, such as "0.13"',
    ),
    in_preflight(
        "small-budget",
        FaultKind.MANIFEST,
        "BudgetTooSmall",
        "The budget does not cover the worst case of one group of episodes.",
        "spec.budget.tokens.sample: a group of ... episodes may use up to ..., and "
        "spec.budget.tokens.sample is 1; write ... or more, or lower what an episode may use",
        "Write at least the number that the message asks for, or lower what an episode may use.",
    ),
    in_preflight(
        "no-dataset",
        FaultKind.DATA,
        "DatasetNotFound",
        "There is no file at the address of the training rows.",
        "spec.data.train.uri: no object at ...; correct the URI",
    ),
    in_preflight(
        "no-validation-rows",
        FaultKind.DATA,
        "DatasetNotFound",
        "There is no file at the address of the held-out rows.",
        "spec.data.validation.uri: no object at ...; correct the URI",
    ),
    in_preflight(
        "another-bucket",
        FaultKind.DATA,
        "DatasetNotFound",
        "The rows are in a bucket that does not exist.",
        "spec.data.train.uri: ...: there is no such bucket...; correct the URI, or let the credentials of "
        "spec.output read it",
    ),
    in_preflight(
        "other-format",
        FaultKind.DATA,
        "DatasetUnreadable",
        "The file does not have the format that the job names.",
        "spec.data.train.uri: ... is not readable parquet: ...; correct format or the file",
        "Correct `format`, or the file.",
    ),
    in_preflight(
        "broken-row",
        FaultKind.DATA,
        "DatasetUnreadable",
        "One line of the file is not JSON.",
        "spec.data.train.uri: ... is not readable jsonl: row 2 cannot be read: ...; correct or remove it",
        "Correct the row, or remove it.",
    ),
    in_preflight(
        "no-rows",
        FaultKind.DATA,
        "DatasetEmpty",
        "The file has no rows.",
        "spec.data.train.uri: ... has no rows; write rows to it, or name another file",
    ),
    in_preflight(
        "no-prompt-column",
        FaultKind.DATA,
        "PromptColumnMissing",
        "A row has no prompt in the column that the job names.",
        "spec.data.train.promptColumn: row 0 of ... has no 'question'; columns are ...: name one of them, "
        "or fill the column",
        "Name a column that every row fills, or fill this one.",
    ),
    in_preflight(
        "no-task-column",
        FaultKind.DATA,
        "ColumnMissing",
        "A row has no task in the column that the job names.",
        "spec.data.train.taskColumn: row 0 has no 'topic'; columns are ...: name one of them, or fill the "
        "column",
        "Name a column that every row fills, or fill this one.",
    ),
    in_preflight(
        "unknown-task",
        FaultKind.DATA,
        "TaskUnknown",
        "A task has a weight, but no rows.",
        "spec.data.taskWeights: no training row has the task returns; tasks are ...: name one of them",
        "Name tasks that training rows have, or remove the weight.",
    ),
    in_preflight(
        "held-out-rows-trained",
        FaultKind.DATA,
        "SplitsOverlap",
        "Held-out rows are also training rows, so validations would look too good.",
        "spec.data.validation: ... rows of spec.data.validation are also rows of spec.data.train: ...; "
        "remove them from one of the two, or write spec.data.allowOverlap: true",
        "Remove these rows from one of the two files, or write `spec.data.allowOverlap: true`.",
    ),
    in_preflight(
        "too-few-rows",
        FaultKind.DATA,
        "TooFewRows",
        "There are fewer rows than one batch needs.",
        "spec.algorithm.batchSize: ... rows in 1 epochs do not fill one batch of ...; lower batchSize, "
        "raise schedule.maxEpochs, or add rows",
    ),
    in_preflight(
        "no-model",
        FaultKind.MODEL,
        "ModelUnavailable",
        "There is nothing at the address of the base model.",
        (
            "spec.model.base: there is nothing at ...; upload a Hugging Face folder there, or correct "
            "the address"
        ),
    ),
    in_preflight(
        "half-a-model",
        FaultKind.MODEL,
        "ModelIncomplete",
        "The folder has weights but no configuration.",
        "spec.model.base: the base model has no config.json; upload the whole Hugging Face folder",
    ),
    in_preflight(
        "garbled-configuration",
        FaultKind.MODEL,
        "ModelNotLoadable",
        "The model's config.json is damaged.",
        "spec.model.base: the base model's config.json is not a model's configuration (...); upload the "
        "whole Hugging Face folder again",
    ),
    in_preflight(
        "no-chat-template",
        FaultKind.MODEL,
        "ChatTemplateMissing",
        "The model is a base model without a chat template.",
        "spec.model.base: the base model has no chat template; add chat_template.jinja beside its "
        "tokenizer, or use an instruction-tuned model",
    ),
    in_preflight(
        "no-calls-read",
        FaultKind.MODEL,
        "ToolCallsUnreadable",
        "The chat template writes no tool calls, so Headway cannot know how the model writes them.",
        "spec.agent.builtin.toolCallParser: the environment offers ... tools, and no reader finds the calls "
        "that the chat template of the model, ..., writes. The job would count every call as text; name the "
        "model's reader in spec.agent.builtin.toolCallParser, or put a chat_template.jinja that writes "
        "tool_calls beside the tokenizer",
        advice="Look the model up in [Models](models.md): its row names the reader, or the problem.",
    ),
    in_preflight(
        "no-results-taken",
        FaultKind.MODEL,
        "ToolCallsUnreadable",
        "The chat template accepts no tool results, so every episode would end at its first call.",
        "spec.agent.builtin.toolCallParser: the environment offers ... tools, and the chat template of "
        "the model, ..., accepts no tool results (...). Every episode would end at its first call; put a "
        "chat_template.jinja that writes tool_calls and takes messages of the role tool beside the "
        "tokenizer",
    ),
    in_preflight(
        "beyond-the-model",
        FaultKind.MODEL,
        "ContextLengthTooLong",
        "The job asks for a longer context than the model has.",
        "spec.model.contextLength: ... is more than the model's own limit of ...; lower it",
        "Lower `spec.model.contextLength` to the model's limit.",
    ),
    in_preflight(
        "no-such-module",
        FaultKind.MODEL,
        "LoraTargetsUnusable",
        "The adapter targets modules that the model does not have.",
        "spec.model.lora.targets: w_pack: the base model has no linear module of that name that may get an "
        "adapter. Embeddings, the output head and experts get none; name some of ..., or leave targets out "
        "for all of them",
        "Name modules that the message lists, or leave `targets` out to adapt all of them.",
    ),
    in_preflight(
        "no-room-for-turns",
        FaultKind.MODEL,
        "ContextTooShort",
        "The context has no room for the prompt, the tools and all turns.",
        "spec.rollout.sampling.maxTokens: ... prompt and tool tokens + ... turns x ... tokens = ..., but "
        "the context holds ..., tool results not counted; lower spec.rollout.sampling.maxTokens to ..., or "
        "spec.agent.builtin.maxTurns",
        "Lower `spec.rollout.sampling.maxTokens` to the number that the message gives, or lower `maxTurns`.",
    ),
    retried(
        "hub-out-of-reach",
        FaultKind.NETWORK,
        "ProcessFailed",
        "The model is on the Hugging Face hub, which the job's processes cannot reach.",
        "spec.model.base: ... could not be fetched from the hub (...); let the job's processes reach it, or "
        "copy the model's folder to s3:// and name it here",
        "The job tries again `spec.failurePolicy.maxRestarts` times. Let its pods reach the hub, or copy "
        "the model.",
    ),
    in_preflight(
        "no-weights-to-start-from",
        FaultKind.WEIGHTS,
        "ModelUnavailable",
        "There is nothing at the address of the weights to start from.",
        "spec.model.warmStart: there is nothing at ...; upload a Hugging Face folder there, or correct "
        "the address",
    ),
    in_preflight(
        "other-rank",
        FaultKind.WEIGHTS,
        "WarmStartUnusable",
        "The adapter to start from has another rank than the job's adapter.",
        "spec.model.warmStart: the adapter has rank 8 and alpha 16, not 16 and 32; set the same in "
        "spec.model.lora, or merge it into its base model",
        "Set `spec.model.lora` to the adapter's rank and alpha, or merge the adapter into its base model.",
    ),
    in_preflight(
        "adapter-of-another-model",
        FaultKind.WEIGHTS,
        "WarmStartUnusable",
        "The adapter to start from was trained on another base model.",
        "spec.model.warmStart: the adapter is of base model ..., not ...; start from one of this base model. "
        "If both are the same model, correct base_model_name_or_path in its adapter_config.json",
        "Start from an adapter of this base model. If it is one, correct its `base_model_name_or_path`.",
    ),
    Fault(
        "no-job-to-start-from",
        FaultKind.WEIGHTS,
        Stage.SPEC,
        "The job starts from the weights of a job that does not exist.",
        "spec.model.warmStart.job: there is no RLTrainingJob absent in this namespace yet. This job "
        "starts when absent has ended; to start sooner, give the uri of weights instead",
        "Apply the other job, or correct its name. The two jobs may be applied in any order.",
        state="Pending",
        reason="WaitingForWeights",
        condition="Ready",
        event="WaitingForWeights",
    ),
    Fault(
        "no-candidate",
        FaultKind.WEIGHTS,
        Stage.SPEC,
        "An evaluation measures the weights of a job that does not exist.",
        "spec.candidates[tuned].checkpoint.job: there is no RLTrainingJob absent in this namespace; create "
        "it, or name another job",
        "Create the job, or name another one. The evaluation waits `spec.pendingDeadlineSeconds` for it.",
        state="Pending",
        reason="CandidateMissing",
        condition="CandidatesResolved",
        event="CandidateMissing",
    ),
    in_preflight(
        "spoilt-weights",
        FaultKind.WEIGHTS,
        "ModelNotLoadable",
        "The file of the base model's weights is cut short, for example by an interrupted upload.",
        (
            "spec.model.base: .../model.safetensors has ... bytes, but its header describes ...; upload "
            "the file again"
        ),
    ),
    in_preflight(
        "layer-left-out",
        FaultKind.WEIGHTS,
        "ModelIncomplete",
        "The base model's weights lack a layer that config.json counts.",
        "spec.model.base: ... has no tensor of model.layers..., and config.json says num_hidden_layers: ...; "
        "upload the whole Hugging Face folder again",
    ),
)
