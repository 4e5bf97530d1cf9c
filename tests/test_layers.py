"""Who may import whom, where the heavy dependencies live, and what stays light."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]

# A module may import those of later groups, never those of earlier ones or its neighbours in the group.
GROUPS: Final = (
    ("nodes", "cli"),
    ("bench",),
    ("api",),
    ("services", "adapters"),
    ("learn", "rollout", "observe"),
    ("algorithms",),
    ("model",),
    ("replay", "net", "wire"),
    ("config",),
    ("fragments", "spec", "metrics"),
    ("errors", "extras", "presets"),
)
EXCEPTIONS: Final = {
    ("config.models", "algorithms.registry"),  # loads the settings of the algorithm that a run names
    ("cli.nodes", "nodes"),  # starts them
    ("nodes.without_torch", "cli"),  # runs a node's command line in a fork
    ("nodes.without_torch", "cli.app"),
}
FACES: Final = {"", "__main__"}
"""The package itself, whose names load on first use, and `python -m`."""

HOMES: Final = {
    "torch": {"model", "algorithms", "learn", "services.evaluator", "services.learner", "nodes.with_torch", "bench"},
    "zmq": {"net"},
    "msgpack": {"wire"},
    "gymnasium": {"rollout", "adapters", "bench", "spec"},
    "safetensors": {"model", "learn"},
    "uvloop": {"services", "api"},
    "typer": {"cli"},
    "rich": {"bench", "cli", "observe"},
    "matplotlib": {"bench", "observe"},
    "PIL": {"observe"},
    "wandb": {"observe"},
    "imageio_ffmpeg": {"observe"},
}
NEVER: Final = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}

LIGHT: Final = {
    "parl_mq": ("torch", "zmq", "pydantic", "numpy", "gymnasium"),
    "parl_mq.cli.app": ("torch", "zmq", "pydantic", "numpy", "gymnasium"),
    "parl_mq.config": ("torch", "zmq", "gymnasium"),
    "parl_mq.config.schema": ("torch", "zmq", "gymnasium"),
    "parl_mq.observe.progress": ("torch", "zmq", "gymnasium"),
    "parl_mq.observe.comparison": ("torch", "zmq", "gymnasium", "matplotlib", "pydantic"),
    "parl_mq.observe.plots": ("torch", "zmq", "gymnasium", "matplotlib", "pydantic"),
    "parl_mq.replay.buffer": ("torch", "zmq", "gymnasium"),
    "parl_mq.services.hub": ("torch", "gymnasium"),
    "parl_mq.services.replay": ("torch", "gymnasium"),
    "parl_mq.services.supervisor": ("torch",),
}


def _modules() -> Iterator[tuple[str, ast.Module]]:
    """(dotted name below parl_mq, syntax tree) of every module; nodes/ is installed as parl_mq.nodes."""
    for folder, prefix in ((ROOT / "parl_mq", ()), (ROOT / "nodes", ("nodes",))):
        for path in sorted(folder.rglob("*.py")):
            parts = (*prefix, *path.relative_to(folder).with_suffix("").parts)
            name = ".".join(part for part in parts if part != "__init__")
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def _imports(tree: ast.Module, *, for_types: bool = True) -> set[str]:
    """Whole names of the modules that a file imports, in functions too.

    Args:
        tree: of the file.
        for_types: also what stands under `if TYPE_CHECKING`.
    """
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    hidden = set() if for_types else {id(node) for block in blocks for node in ast.walk(block)}
    return {name for node in ast.walk(tree) if id(node) not in hidden for name in _imported_by(node)}


def _imported_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    assert node.level == 0, "relative imports hide who imports whom"
    names = [f"{node.module}.{alias.name}" for alias in node.names]
    return [name if name.removeprefix("parl_mq.") in MODULES else node.module or "" for name in names]


def _dangers(tree: ast.Module) -> Iterator[str]:
    """Calls that could run code which stands in what they read."""
    for call in [node for node in ast.walk(tree) if isinstance(node, ast.Call)]:
        owner, _, name = ast.unparse(call.func).rpartition(".")
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        if (
            (not owner and name in ("eval", "exec", "compile", "__import__"))
            or name in ("recv_pyobj", "send_pyobj", "recv_serialized", "unsafe_load", "full_load")
            or (owner == "torch" and name == "load" and given.get("weights_only") != "True")
            or (owner == "yaml" and name == "load")
            or given.get("allow_pickle", "False") != "False"
            or "object_hook" in given
            or "ext_hook" in given
        ):
            yield f"line {call.lineno}: {ast.unparse(call)}"


def _rank(name: str) -> int:
    (rank,) = (rank for rank, group in enumerate(GROUPS) if name.partition(".")[0] in group)
    return rank


def _may_import(importer: str, imported: str) -> bool:
    is_own_package = importer.partition(".")[0] == imported.partition(".")[0]
    is_exception = any(importer == one and (imported + ".").startswith(f"{other}.") for one, other in EXCEPTIONS)
    return is_own_package or is_exception or _rank(imported) > _rank(importer)


def _is_below(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


def _uses(tree: ast.Module, dependency: str) -> bool:
    return any(_is_below(used, dependency) for used in _imports(tree, for_types=False))


MODULES: Final = dict(_modules())
KNOWN: Final = {name.partition(".")[0] for name in MODULES} - FACES


def test_every_package_has_its_layer() -> None:
    assert not KNOWN - {name for group in GROUPS for name in group}


@pytest.mark.parametrize("name", [name for name in MODULES if name not in FACES])
def test_imports_go_to_later_layers_alone(name: str) -> None:
    own = [imported.removeprefix("parl_mq.") for imported in _imports(MODULES[name]) if _is_below(imported, "parl_mq")]
    wrong = {imported for imported in own if imported.partition(".")[0] in KNOWN and not _may_import(name, imported)}
    assert not wrong


@pytest.mark.parametrize("dependency", HOMES)
def test_heavy_dependency_stays_at_home(dependency: str) -> None:
    users = {name for name, tree in MODULES.items() if _uses(tree, dependency)}
    assert {user for user in users if not any(_is_below(user, home) for home in HOMES[dependency])} == set()


def test_nothing_loads_code_from_bytes() -> None:
    users = {name for name, tree in MODULES.items() if NEVER & {used.partition(".")[0] for used in _imports(tree)}}
    assert users == set()


@pytest.mark.parametrize("name", MODULES)
def test_nothing_that_was_read_becomes_code(name: str) -> None:
    assert list(_dangers(MODULES[name])) == []


def test_calls_that_make_code_of_what_was_read_are_found() -> None:
    for line in (
        "torch.load(path)", "torch.load(path, weights_only=False)", "socket.recv_pyobj()", "socket.send_pyobj(x)",
        "eval(text)", "exec(text)", "compile(text, '', 'exec')", "yaml.load(file)", "np.load(file, allow_pickle=True)",
        "__import__(name)", "msgpack.unpackb(x, object_hook=f)",
    ):  # fmt: skip
        assert len(list(_dangers(ast.parse(line)))) == 1, line
    for line in ("torch.load(path, weights_only=True)", "re.compile(text)", "model.eval()", "np.load(file)"):
        assert list(_dangers(ast.parse(line))) == [], line


@pytest.mark.parametrize("module", LIGHT)
def test_light_module_loads_nothing_heavy(module: str) -> None:
    script = f"import sys, {module}; print(*(name for name in {LIGHT[module]!r} if name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


@pytest.mark.parametrize("role", ["hub", "replay"])
def test_node_without_networks_loads_no_torch(role: str) -> None:
    script = f"import sys, parl_mq.nodes.{role}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_rules_catch_what_they_forbid() -> None:
    assert not _may_import("replay.ring", "services.hub")
    assert not _may_import("replay.ring", "wire.codec")
    assert not _may_import("config.loader", "algorithms.registry")
    assert _may_import("config.models", "algorithms.registry")
    assert _may_import("cli.nodes", "nodes.hub")
    assert not _may_import("nodes.hub", "cli.nodes")
    lazy = ast.parse("def f():\n    from parl_mq.net import channel\nif TYPE_CHECKING:\n    import torch.nn")
    assert _imports(lazy) == {"parl_mq.net.channel", "torch.nn"}
    assert _imports(lazy, for_types=False) == {"parl_mq.net.channel"}
