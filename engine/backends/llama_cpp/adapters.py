"""Low-rank adapters of a llama.cpp model: loaded when a reply first asks for them, then kept."""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import llama_cpp

from engine.backends.llama_cpp.log import NativeLog
from engine.configuration import Adapter
from engine.errors import AdapterError


class Adapters:
    """The adapters of one context, of which some are in use.

    llama.cpp frees an adapter with its model. Those in use work on every sequence of the context,
    and a change of them makes the next decode lay its graph out anew.
    """

    def __init__(self, model: object, context: object, log: NativeLog) -> None:
        self._model = model
        self._context = context
        self._log = log
        self._loaded: dict[Path, ctypes._Pointer[ctypes.c_void_p]] = {}
        self.used: tuple[Adapter, ...] = ()

    def use(self, adapters: Sequence[Adapter]) -> None:
        """Decode with these adapters and no others from now on.

        Raises:
            AdapterError: a file is missing, or is no adapter of this model; those before stay.
        """
        wanted = tuple(adapters)
        if wanted == self.used:
            return
        handles = (llama_cpp.llama_adapter_lora_p_ctypes * len(wanted))()
        for index, adapter in enumerate(wanted):
            handles[index] = self._load(adapter.path)
        scales = (ctypes.c_float * len(wanted))(*(adapter.scale for adapter in wanted))
        self._log.clear()
        if llama_cpp.llama_set_adapters_lora(self._context, handles, len(wanted), scales):
            raise AdapterError(f"llama.cpp could not use the adapters: {self._log.errors()}")
        self.used = wanted

    def _load(self, path: Path) -> "ctypes._Pointer[ctypes.c_void_p]":
        known = self._loaded.get(path)
        if known is not None:
            return known
        if not path.is_file():
            raise AdapterError(f"the adapter {path} does not exist: check the path")
        self._log.clear()
        adapter: ctypes._Pointer[ctypes.c_void_p] = llama_cpp.llama_adapter_lora_init(
            self._model, str(path).encode()
        )
        if not adapter:
            raise AdapterError(
                f"{path.name} is no adapter of this model: "
                f"{self._log.errors() or 'no reason was given'}"
            )
        self._loaded[path] = adapter
        return adapter
