/* The least that plain greedy decoding can be: llama_decode and argmax, one token at a time.
 *
 *   bare_loop MODEL N_CTX N_THREADS N_GENERATE < tokens
 *
 * Reads the prompt's token ids from standard input, prints seconds, then the generated ids. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "llama.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void silent(enum ggml_log_level level, const char *text, void *data) {
    (void) level, (void) text, (void) data;
}

static llama_token argmax(const float *logits, int n) {
    int best = 0;
    for (int i = 1; i < n; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    return best;
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    const int n_ctx = atoi(argv[2]), n_threads = atoi(argv[3]), n_generate = atoi(argv[4]);
    llama_token *tokens = malloc(sizeof(llama_token) * (n_ctx + 1));
    int n_tokens = 0;
    while (n_tokens < n_ctx && scanf("%d", &tokens[n_tokens]) == 1) n_tokens++;

    llama_log_set(silent, NULL);
    llama_backend_init();
    struct llama_model_params mp = llama_model_default_params();
    struct llama_model *model = llama_model_load_from_file(argv[1], mp);
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = n_ctx;
    cp.n_batch = cp.n_ubatch = 512;
    cp.n_outputs_max = 17;
    cp.n_threads = cp.n_threads_batch = n_threads;
    cp.swa_full = false;
    struct llama_context *context = llama_init_from_model(model, cp);
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));

    struct llama_batch batch = llama_batch_init(512, 0, 1);
    for (int start = 0; start < n_tokens - 1; start += 512) {
        int n = n_tokens - 1 - start < 512 ? n_tokens - 1 - start : 512;
        batch.n_tokens = n;
        for (int i = 0; i < n; i++) {
            batch.token[i] = tokens[start + i];
            batch.pos[i] = start + i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = 0;
        }
        if (llama_decode(context, batch) != 0) return 1;
    }
    llama_synchronize(context);

    llama_token token = tokens[n_tokens - 1];
    llama_token *generated = malloc(sizeof(llama_token) * n_generate);
    batch.n_tokens = 1;
    batch.n_seq_id[0] = 1;
    batch.seq_id[0][0] = 0;
    batch.logits[0] = 1;
    const double start = now();
    for (int i = 0; i < n_generate; i++) {
        batch.token[0] = token;
        batch.pos[0] = n_tokens - 1 + i;
        if (llama_decode(context, batch) != 0) return 1;
        token = generated[i] = argmax(llama_get_logits_ith(context, -1), n_vocab);
    }
    printf("%.6f\n", now() - start);
    for (int i = 0; i < n_generate; i++) printf("%d ", generated[i]);
    printf("\n");
    return 0;
}
