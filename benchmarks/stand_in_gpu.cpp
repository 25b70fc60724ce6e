// A GPU that holds nothing and computes nothing, for llama.cpp's dry run on machines without one.
//
// It answers what llama.cpp asks while it lays out a model, by the rules of the CUDA backend of
// llama.cpp 0c1e57098 on a card with tensor cores: which operations and types it takes, how much a
// tensor needs, when a product with weights of the CPU moves over. It says nothing about CUDA's own
// memory, and cannot run a graph.

#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr size_t max_devices = 4;
constexpr size_t alignment = 128;
constexpr int64_t row_padding = 512;       // MATRIX_ROW_PADDING
constexpr int64_t fattn_stride = 256;      // FATTN_KQ_STRIDE
constexpr int64_t offload_min_batch = 32;  // GGML_OP_OFFLOAD_MIN_BATCH

size_t n_devices = 0;
constexpr size_t memory_of_one = size_t(24) << 30;

struct stand_in {
    std::string name;
    ggml_backend_device device{};
    ggml_backend_buffer_type buffer_type{};
};

std::array<stand_in, max_devices> gpus;
ggml_backend_buffer_type host_type{};
ggml_backend_reg registry{};

stand_in & of(ggml_backend_dev_t device) { return *static_cast<stand_in *>(device->context); }

bool is_ours(ggml_backend_buffer_type_t type) {
    for (stand_in & gpu : gpus) {
        if (type == &gpu.buffer_type) return true;
    }
    return false;
}

// --- flash attention -----------------------------------------------------------------------------

bool has_fast_attention(const ggml_tensor * dst) {
    const ggml_tensor * q = dst->src[0];
    const ggml_tensor * k = dst->src[1];
    const ggml_tensor * v = dst->src[2];
    const ggml_tensor * mask = dst->src[3];
    for (const ggml_tensor * t : {k, v}) {
        switch (t->type) {
            case GGML_TYPE_F32: case GGML_TYPE_F16: case GGML_TYPE_BF16: case GGML_TYPE_Q4_0:
            case GGML_TYPE_Q4_1: case GGML_TYPE_Q5_0: case GGML_TYPE_Q5_1: case GGML_TYPE_Q8_0: break;
            default: return false;
        }
    }
    if (mask && mask->ne[2] != 1) return false;
    float max_bias = 0.0f;
    memcpy(&max_bias, reinterpret_cast<const float *>(dst->op_params) + 1, sizeof(max_bias));
    const int64_t group = q->ne[2] / k->ne[2];
    bool can_group = group >= 2 && mask && max_bias == 0.0f && k->ne[1] % fattn_stride == 0;
    for (const ggml_tensor * t : {q, k, v, mask}) {
        if (!t || ggml_is_quantized(t->type)) continue;
        for (int i = 1; i < GGML_MAX_DIMS; ++i) can_group = can_group && t->nb[i] % 16 == 0;
    }
    switch (k->ne[0]) {
        case 40: case 64: case 72: case 80: case 96: case 112: case 128: case 256: return v->ne[0] == k->ne[0];
        case 192: return v->ne[0] == 128 && can_group && group % 8 == 0;
        case 320: return v->ne[0] == 256 && can_group && group % 32 == 0;
        case 512: return v->ne[0] == 512 && can_group;
        case 576: return v->ne[0] == 512 && can_group;
        default: return false;
    }
}

// Kernels for batches read K and V as f16: others are copied behind the result, whole.
size_t attention_bytes(const ggml_tensor * dst) {
    const ggml_tensor * q = dst->src[0];
    const ggml_tensor * k = dst->src[1];
    const ggml_tensor * v = dst->src[2];
    size_t end = ggml_nbytes(dst);
    const bool is_quantized = ggml_is_quantized(k->type) || ggml_is_quantized(v->type);
    const bool has_pair = k->type == v->type && (k->type == GGML_TYPE_Q4_0 || k->type == GGML_TYPE_Q8_0);
    const bool is_vector = q->ne[1] <= 2 && q->ne[0] <= 256 && q->ne[0] % 64 == 0 && q->ne[0] != 192 &&
                           k->ne[1] % fattn_stride == 0 && is_quantized;
    if (!has_fast_attention(dst) || (is_vector && has_pair)) return end;
    const bool is_view = v->view_src &&
        (v->view_src == k || (v->view_src == k->view_src && v->view_offs == k->view_offs));
    if (k->type != GGML_TYPE_F16) end = GGML_PAD(end, alignment) + ggml_nelements(k) * 2;
    if (v->type != GGML_TYPE_F16 && !is_view) end = GGML_PAD(end, alignment) + ggml_nelements(v) * 2;
    return end;
}

// --- buffers -------------------------------------------------------------------------------------

const char * type_name(ggml_backend_buffer_type_t type) { return of(type->device).name.c_str(); }
const char * host_name(ggml_backend_buffer_type_t) { return "GPU_Host"; }
size_t get_alignment(ggml_backend_buffer_type_t) { return alignment; }
bool is_host(ggml_backend_buffer_type_t) { return true; }

size_t alloc_size(ggml_backend_buffer_type_t, const ggml_tensor * tensor) {
    size_t size = tensor->op == GGML_OP_FLASH_ATTN_EXT ? attention_bytes(tensor) : ggml_nbytes(tensor);
    const int64_t rest = tensor->ne[0] % row_padding;
    if (ggml_is_quantized(tensor->type) && rest) size += ggml_row_size(tensor->type, row_padding - rest);
    return size;
}

// Addresses without memory behind them: recurrent state is allocated even in a dry run.
void free_buffer(ggml_backend_buffer_t buffer) { munmap(buffer->context, buffer->size); }
void * get_base(ggml_backend_buffer_t buffer) { return buffer->context; }
void ignore_memset(ggml_backend_buffer_t, ggml_tensor *, uint8_t, size_t, size_t) {}
void ignore_set(ggml_backend_buffer_t, ggml_tensor *, const void *, size_t, size_t) {}
void ignore_get(ggml_backend_buffer_t, const ggml_tensor *, void *, size_t, size_t) {}
void ignore_clear(ggml_backend_buffer_t, uint8_t) {}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    void * base = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return nullptr;
    ggml_backend_buffer_i iface{};
    iface.free_buffer = free_buffer;
    iface.get_base = get_base;
    iface.memset_tensor = ignore_memset;
    iface.set_tensor = ignore_set;
    iface.get_tensor = ignore_get;
    iface.clear = ignore_clear;
    return ggml_backend_buffer_init(type, iface, base, size);
}

ggml_backend_buffer_t alloc_host(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    if (buffer) buffer->buft = type;
    return buffer;
}

size_t host_alignment(ggml_backend_buffer_type_t) {
    return ggml_backend_buft_get_alignment(ggml_backend_cpu_buffer_type());
}

// --- what it can compute -------------------------------------------------------------------------

bool supports_product(const ggml_tensor * op) {
    const ggml_tensor * a = op->src[0];
    const ggml_tensor * b = op->src[1];
    if (a->nb[0] != ggml_element_size(a) || b->nb[0] != ggml_element_size(b)) return false;
    return b->type != GGML_TYPE_F16 || a->type == GGML_TYPE_F16;
}

bool supports_scan(const ggml_tensor * op) {
    const ggml_tensor * state = op->src[0];
    if (op->src[3]->ne[0] == 1) {
        return (state->ne[0] == 96 || state->ne[0] == 128 || state->ne[0] == 256) && state->ne[1] % 16 == 0;
    }
    return op->op_params[0] <= 1 && state->ne[0] == 16 && state->ne[1] == 1 &&
           state->ne[2] % 128 == 0 && op->src[4]->ne[1] == 1;
}

bool supports_op(ggml_backend_dev_t device, const ggml_tensor * op) {
    for (const ggml_tensor * source : op->src) {
        if (!source || !source->buffer || !is_ours(source->buffer->buft)) continue;
        if (source->buffer->buft->device != device) return false;
    }
    switch (op->op) {
        case GGML_OP_MUL_MAT: case GGML_OP_MUL_MAT_ID: return supports_product(op);
        case GGML_OP_FLASH_ATTN_EXT: return has_fast_attention(op);
        case GGML_OP_SSM_SCAN: return supports_scan(op);
        case GGML_OP_SSM_CONV: return op->src[0]->ne[1] % 128 == 0;
        case GGML_OP_NORM: case GGML_OP_RMS_NORM: case GGML_OP_L2_NORM:
            return ggml_is_contiguous_rows(op->src[0]);
        default: return true;
    }
}

bool supports_type(ggml_backend_dev_t device, ggml_backend_buffer_type_t type) {
    return is_ours(type) && type->device == device;
}

bool offload_op(ggml_backend_dev_t, const ggml_tensor * op) {
    switch (op->op) {
        case GGML_OP_GET_ROWS: return false;
        case GGML_OP_MUL_MAT: return op->ne[1] >= offload_min_batch;
        case GGML_OP_MUL_MAT_ID: case GGML_OP_ROPE: case GGML_OP_ROPE_BACK: return op->ne[2] >= offload_min_batch;
        default: return ggml_nrows(op) >= offload_min_batch;
    }
}

// --- backend, device, registry -------------------------------------------------------------------

const char * backend_name(ggml_backend_t backend) { return of(backend->device).name.c_str(); }
void free_backend(ggml_backend_t backend) { delete backend; }
void ignore_backend(ggml_backend_t) {}
ggml_status compute(ggml_backend_t, ggml_cgraph *) { return GGML_STATUS_FAILED; }
void ignore_event(ggml_backend_t, ggml_backend_event_t) {}

ggml_guid_t guid() {
    static ggml_guid id = {0x6b, 0x76, 0x63, 0x68, 0x61, 0x74, 0x73, 0x74, 0x61, 0x6e, 0x64, 0x69, 0x6e, 0, 0, 1};
    return &id;
}

ggml_backend_t init_backend(ggml_backend_dev_t device, const char *) {
    ggml_backend_i iface{};
    iface.get_name = backend_name;
    iface.free = free_backend;
    iface.synchronize = ignore_backend;
    iface.graph_compute = compute;
    iface.event_record = ignore_event;
    iface.event_wait = ignore_event;
    return new ggml_backend{guid(), iface, device, nullptr};
}

const char * device_name(ggml_backend_dev_t device) { return of(device).name.c_str(); }
const char * description(ggml_backend_dev_t) { return "stand-in"; }
enum ggml_backend_dev_type device_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; }
ggml_backend_buffer_type_t buffer_type(ggml_backend_dev_t device) { return &of(device).buffer_type; }
ggml_backend_buffer_type_t host_buffer_type(ggml_backend_dev_t) { return &host_type; }
void memory(ggml_backend_dev_t, size_t * free, size_t * total) { *free = *total = memory_of_one; }

void props(ggml_backend_dev_t device, ggml_backend_dev_props * out) {
    *out = {};
    out->name = device_name(device);
    out->description = description(device);
    out->type = device_type(device);
    memory(device, &out->memory_free, &out->memory_total);
    out->caps = {/*async*/ true, /*host_buffer*/ true, /*buffer_from_host_ptr*/ false,
                 /*events*/ true, /*mmap_support*/ true};
}

ggml_backend_event_t new_event(ggml_backend_dev_t device) { return new ggml_backend_event{device, nullptr}; }
void free_event(ggml_backend_dev_t, ggml_backend_event_t event) { delete event; }
void wait_event(ggml_backend_dev_t, ggml_backend_event_t) {}

const char * registry_name(ggml_backend_reg_t) { return "stand-in"; }
size_t device_count(ggml_backend_reg_t) { return n_devices; }
ggml_backend_dev_t get_device(ggml_backend_reg_t, size_t index) { return &gpus[index].device; }

void fill(stand_in & gpu, size_t index) {
    gpu.name = "GPU" + std::to_string(index);
    ggml_backend_device_i & iface = gpu.device.iface;
    iface.get_name = device_name;
    iface.get_description = description;
    iface.get_memory = memory;
    iface.get_type = device_type;
    iface.get_props = props;
    iface.init_backend = init_backend;
    iface.get_buffer_type = buffer_type;
    iface.get_host_buffer_type = host_buffer_type;
    iface.supports_op = supports_op;
    iface.supports_buft = supports_type;
    iface.offload_op = offload_op;
    iface.event_new = new_event;
    iface.event_free = free_event;
    iface.event_synchronize = wait_event;
    gpu.device.reg = &registry;
    gpu.device.context = &gpu;
    gpu.buffer_type = {{type_name, alloc_buffer, get_alignment, nullptr, alloc_size, nullptr}, &gpu.device, nullptr};
}

}  // namespace

// Whatever program loads this library sees as many GPUs as STAND_IN_GPUS says: llama-server and
// llama-fit-params through LD_PRELOAD, Python through ctypes.
static size_t show_gpus() {
    const char * count = std::getenv("STAND_IN_GPUS");
    if (!count) return 0;
    n_devices = std::min(size_t(std::atoi(count)), max_devices);
    for (size_t index = 0; index < max_devices; ++index) fill(gpus[index], index);
    host_type = {{host_name, alloc_host, host_alignment, nullptr, nullptr, is_host}, &gpus[0].device, nullptr};
    registry.api_version = GGML_BACKEND_API_VERSION;
    registry.iface = {registry_name, device_count, get_device, nullptr};
    ggml_backend_register(&registry);
    return n_devices;
}

static const size_t n_shown = show_gpus();
