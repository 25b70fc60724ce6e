// What llama.cpp's loader asks of a file: its keys, and its tensors with their shapes.
//
// A program of its own that stands between the loader and the file: it answers for every tensor
// that the loader wants, so that headers with keys and no tensors are loaded to the end. Built
// against llama.cpp's source and the installed libllama, whose calls to these functions come here.
//
// Says `architecture NAME` for each that llama.cpp has, then reads lines `SEED SHARE PATH`: of tensors that
// need not be there, SHARE per cent are, by SEED, whole kinds at a time. Answers `key NAME`,
// `tensor NAME OPERATION SIZE...`, `error TEXT`, and `done`.

#include "gguf.h"
#include "llama-model-loader.h"
#include "llama.h"

#include <dlfcn.h>

#include <cstdio>
#include <functional>
#include <iostream>
#include <regex>
#include <string>

namespace {

unsigned seed = 0;
unsigned share = 0;
ggml_context * shapes = nullptr;

bool is_there(const std::string & name, int flags) {
    using loader = llama_model_loader;
    if (!(flags & (loader::TENSOR_NOT_REQUIRED | loader::TENSOR_SKIP_IF_VIRTUAL))) return true;
    if ((flags & loader::TENSOR_SKIP) && (flags & loader::TENSOR_SKIP_IF_VIRTUAL)) return false;  // fused, of a head
    static const std::regex layer("blk\\.[0-9]+\\."), part("(_[a-z]+)?\\.bias$");
    std::string kind = std::regex_replace(name, layer, "");
    if (kind.find("scale") != std::string::npos && kind.find(".weight") == std::string::npos) return false;
    kind = std::regex_replace(kind, part, ".bias");  // biases of one block come together
    const unsigned number = std::hash<std::string>{}(kind + std::to_string(seed)) % 100;
    return number < (flags & loader::TENSOR_SKIP_IF_VIRTUAL ? share / 3 : share);
}

}  // namespace

int64_t gguf_find_key(const gguf_context * file, const char * key) {
    static const auto find = reinterpret_cast<decltype(&gguf_find_key)>(dlsym(RTLD_NEXT, "gguf_find_key"));
    std::printf("key %s\n", key);
    return find(file, key);
}

ggml_tensor * llama_model_loader::create_tensor(
        const llama_hparams &, const buft_list_t *, const buft_list_t *, const buft_list_t *, const buft_list_t *,
        const LLM_TN_IMPL & tn, const std::initializer_list<int64_t> & ne, int flags) {
    const std::string name = tn.str();
    int64_t sizes[GGML_MAX_DIMS] = {1, 1, 1, 1};
    std::copy(ne.begin(), ne.end(), sizes);
    const bool is_empty = *std::min_element(sizes, sizes + GGML_MAX_DIMS) < 1;
    if (is_empty && !(flags & (TENSOR_NOT_REQUIRED | TENSOR_SKIP))) throw std::runtime_error("no size for " + name);
    if (is_empty || !is_there(name, flags)) return nullptr;
    std::printf("tensor %s %s", name.c_str(), ggml_op_name(llm_tensor_info_for(tn.tensor).op));
    for (int64_t size : ne) std::printf(" %lld", static_cast<long long>(size));
    std::printf("\n");
    if (flags & TENSOR_SKIP) return nullptr;
    ggml_tensor * tensor = ggml_new_tensor(shapes, GGML_TYPE_F32, GGML_MAX_DIMS, sizes);
    return ggml_set_name(tensor, name.c_str());
}

static void ask(const std::string & path) {
    ggml_context * none = nullptr;
    gguf_context * file = gguf_init_from_file(path.c_str(), {/*no_alloc*/ true, &none});
    if (!file) return void(std::printf("error unreadable\n"));
    llama_model_params params = llama_model_default_params();
    params.no_alloc = true;
    params.n_gpu_layers = 0;
    shapes = ggml_init({ggml_tensor_overhead() * 200000, nullptr, /*no_alloc*/ true});
    llama_model * model = llama_model_init_from_user(file, [](ggml_tensor *, void *) {}, nullptr, params);
    if (model) llama_model_free(model);
    ggml_free(shapes);
    gguf_free(file);
    ggml_free(none);
}

int main() {
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level == GGML_LOG_LEVEL_ERROR) std::printf("error %s", text);
    }, nullptr);
    for (llm_arch arch : llm_arch_all()) std::printf("architecture %s\n", llm_arch_name(arch));
    std::printf("done\n");
    std::fflush(stdout);
    std::string path;
    while (std::cin >> seed >> share && std::getline(std::cin >> std::ws, path)) {
        ask(path);
        std::printf("done\n");
        std::fflush(stdout);
    }
}
