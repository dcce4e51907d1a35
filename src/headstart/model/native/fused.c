// What lies between a layer's products, in bfloat16: each reads its rows once and writes them once.
// Plain C that compilers turn into vector instructions.  Sums and products are in float32.

#include <math.h>
#include <stdint.h>
#include <string.h>

#define THREADED 16384  // fewer numbers take less time than waking a thread

typedef uint16_t bf16;

static inline float widen(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline bf16 narrow(float x) {  // to the nearest, ties to even; NaN stays NaN
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return x == x ? (bf16)rounded : (bf16)0x7fc0;
}

// exp(x): the integer part goes into the exponent, the rest through a polynomial (error 2e-6).
static inline float exp_(float x) {
    x = x * 1.44269504f;
    x = x > 126.0f ? 126.0f : x;
    x = x < -126.0f ? -126.0f : x;
    float whole = rintf(x), f = x - whole;
    float p = 1.3398874e-3f;
    p = p * f + 9.6184373e-3f;
    p = p * f + 5.5503324e-2f;
    p = p * f + 2.4022648e-1f;
    p = p * f + 6.9314720e-1f;
    p = p * f + 1.0f;
    uint32_t bits = (uint32_t)((int32_t)whole + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return p * power;
}

// stream [rows, n] += delta, if there is one; out = stream / root mean square * weight
void add_rms_norm(bf16 *stream, const bf16 *delta, const bf16 *weight, float eps, bf16 *out, int64_t rows, int64_t n) {
#pragma omp parallel for if (rows * n >= THREADED)
    for (int64_t row = 0; row < rows; row++) {
        bf16 *x = stream + row * n, *y = out + row * n;
        float squares = 0.0f;
        if (delta)
            for (int64_t i = 0; i < n; i++) x[i] = narrow(widen(x[i]) + widen(delta[row * n + i]));
        for (int64_t i = 0; i < n; i++) squares += widen(x[i]) * widen(x[i]);
        float scale = 1.0f / sqrtf(squares / (float)n + eps);
        for (int64_t i = 0; i < n; i++) y[i] = narrow(widen(x[i]) * scale * widen(weight[i]));
    }
}

// out [rows, n] = silu(gate) * up, where gate_up [rows, 2 n] has them side by side
void silu_and_mul(const bf16 *gate_up, bf16 *out, int64_t rows, int64_t n) {
#pragma omp parallel for if (rows * n >= THREADED)
    for (int64_t row = 0; row < rows; row++) {
        const bf16 *gate = gate_up + row * 2 * n, *up = gate + n;
        for (int64_t i = 0; i < n; i++) {
            float g = widen(gate[i]);
            out[row * n + i] = narrow(g / (1.0f + exp_(-g)) * widen(up[i]));
        }
    }
}

static inline void rotate(const bf16 *x, const float *cos, const float *sin, bf16 *out, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float a = widen(x[i]), b = widen(x[i + half]);
        out[i] = narrow(a * cos[i] - b * sin[i]);
        out[i + half] = narrow(b * cos[i] + a * sin[i]);
    }
}

// q, k [rows, heads, 2 half] rotated by cos and sin [rows, half], q into q_out, k and v into their slots of
// keys and values [slots, kv_heads, 2 half]; q, k and v begin `stride` apart from row to row
void rotate_and_write(const bf16 *q, const bf16 *k, const bf16 *v, int64_t q_stride, int64_t k_stride, int64_t v_stride,
                      const float *cos, const float *sin, bf16 *q_out, bf16 *keys, bf16 *values, const int64_t *slots,
                      int64_t rows, int64_t heads, int64_t kv_heads, int64_t half) {
    int64_t dim = 2 * half;
#pragma omp parallel for if (rows * heads * dim >= THREADED)
    for (int64_t row = 0; row < rows; row++) {
        const float *c = cos + row * half, *s = sin + row * half;
        for (int64_t head = 0; head < heads; head++)
            rotate(q + row * q_stride + head * dim, c, s, q_out + (row * heads + head) * dim, half);
        for (int64_t head = 0; head < kv_heads; head++)
            rotate(k + row * k_stride + head * dim, c, s, keys + (slots[row] * kv_heads + head) * dim, half);
        memcpy(values + slots[row] * kv_heads * dim, v + row * v_stride, kv_heads * dim * sizeof(bf16));
    }
}
