// Attention of one layer over blocks of K and V, in bfloat16, for CPUs with AVX512-BF16.
//
// A segment is some queries and the keys that they all see (or see causally).  Its queries' heads that
// share a KV head are rows of one matrix; tiles of TILE_ROWS rows are the tasks that threads take.  A task
// walks over its keys 64 at a time with a running softmax (https://arxiv.org/abs/2205.14135): K is turned
// into pairs of dimensions for 16 keys, V into pairs of keys, as products want them, be they of matrix tiles
// (AMX) or of vectors.  Segments whose rows have more keys elsewhere leave their part, with the log of its
// sum, to `merge`.

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#define HAVE_AMX 1
#endif

#define TILE_ROWS 48
#define KEYS 64       // keys per pass
#define MAX_DIM 256   // of a head; a multiple of 64
#define GROUP 6       // rows of vectors in registers at once: 6 * 4 sums leave room for what they are made of
#define AMX_ROWS 16   // of a matrix tile
#define INLINE static inline __attribute__((always_inline))

typedef uint16_t bf16;

typedef struct {
    int32_t first_row, num_rows;      // of `rows`: where in q and out its queries are
    int32_t first_block, num_blocks;  // of `blocks`
    int32_t num_keys;                 // that its last query sees
    int32_t causal;                   // 1: each query sees one key more than the one before; 0: all see all
    int32_t part;                     // of its rows' contexts; only of those that are in several
    int32_t alone;                    // 1: its rows' contexts are in this segment alone
} Segment;

typedef struct {
    int32_t segment, kv_head, first_tile_row;
} Task;

typedef struct {
    const bf16 *q;       // [T, q_stride], of which the first num_heads * dim are read
    bf16 *out;           // [T, num_heads, dim]
    const bf16 *keys;    // [slots, num_kv_heads, dim]
    const bf16 *values;  // the same
    const Segment *segments;
    const Task *tasks;
    const int32_t *rows;
    const int32_t *blocks;
    float *parts;  // [num_parts, num_shared, num_heads, dim]
    float *sums;   // [num_parts, num_shared, num_heads]; -inf where a row has no such part
    int64_t q_stride, num_tasks, num_parts, num_shared;  // the first num_shared of `rows` are in several parts
    int64_t block_size, num_heads, num_kv_heads, dim;
} Step;

// 2**x for x <= 0: the integer part goes into the exponent, the rest through a polynomial (error 2e-6).
INLINE __m512 exp2_(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-126.0f), x);
    __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(x, whole);
    __m512 p = _mm512_set1_ps(1.3398874e-3f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.6184373e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5503324e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4022648e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9314720e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, whole);
}

INLINE void transpose_16x16(__m512i r[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

// Where the pass's keys are: pointers for `count` of them, what is behind reads as zero.
typedef struct {
    const bf16 *key[KEYS], *value[KEYS];
    int count;
} Pass;

INLINE __m512i load_row(const bf16 *const *row, int i, int count, int64_t offset) {
    return i < count ? _mm512_loadu_si512(row[i] + offset) : _mm512_setzero_si512();
}

// packed[pair of dimensions][key]
static void pack_keys(const Pass *pass, int64_t dim, int32_t (*packed)[KEYS]) {
    __m512i r[16];
    for (int key = 0; key < KEYS; key += 16)
        for (int64_t d = 0; d < dim; d += 32) {
            for (int i = 0; i < 16; i++) r[i] = load_row(pass->key, key + i, pass->count, d);
            transpose_16x16(r);
            for (int i = 0; i < 16; i++) _mm512_store_si512(&packed[d / 2 + i][key], r[i]);
        }
}

// packed[pair of keys][dimension], the dimensions of each 32 in the order that `unpermute` undoes
static void pack_values(const Pass *pass, int64_t dim, int32_t (*packed)[MAX_DIM]) {
    for (int key = 0; key < KEYS; key += 2)
        for (int64_t d = 0; d < dim; d += 32) {
            __m512i a = load_row(pass->value, key, pass->count, d);
            __m512i b = load_row(pass->value, key + 1, pass->count, d);
            _mm512_store_si512(&packed[key / 2][d], _mm512_unpacklo_epi16(a, b));
            _mm512_store_si512(&packed[key / 2][d + 16], _mm512_unpackhi_epi16(a, b));
        }
}

INLINE void unpermute(const float *sums, float *out) {  // 32 dimensions
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    __m512 a = _mm512_load_ps(sums), b = _mm512_load_ps(sums + 16);
    _mm512_storeu_ps(out, _mm512_permutex2var_ps(a, low, b));
    _mm512_storeu_ps(out + 16, _mm512_permutex2var_ps(a, high, b));
}

typedef struct {
    _Alignas(64) int32_t keys[MAX_DIM / 2][KEYS];
    _Alignas(64) int32_t values[KEYS / 2][MAX_DIM];
    _Alignas(64) int32_t queries[TILE_ROWS][MAX_DIM / 2];  // pairs of dimensions
    _Alignas(64) float scores[TILE_ROWS][KEYS];
    _Alignas(64) int32_t weights[TILE_ROWS][KEYS / 2];  // pairs of keys
    _Alignas(64) float sums[TILE_ROWS][MAX_DIM];        // weighted values so far
    float highest[TILE_ROWS], total[TILE_ROWS];         // of scores, in powers of two; of weights
    int visible[TILE_ROWS];                             // keys that a row sees
} Tile;

// out [n, 64] (+)= a [n, pairs] x b [pairs, 64], where a and b hold pairs and every pair is multiplied and
// added: scores of queries and keys, and sums of weights and values.
INLINE void multiply_rows(const int n, const int add, int64_t pairs, const int32_t *a, int64_t a_stride,
                          const int32_t *b, int64_t b_stride, float *out, int64_t out_stride) {
    __m512 sum[GROUP][4];
    for (int i = 0; i < n; i++)
        for (int j = 0; j < 4; j++)
            sum[i][j] = add ? _mm512_load_ps(out + i * out_stride + 16 * j) : _mm512_setzero_ps();
    for (int64_t pair = 0; pair < pairs; pair++) {
        __m512bh column[4];
        for (int j = 0; j < 4; j++) column[j] = (__m512bh)_mm512_load_si512(b + pair * b_stride + 16 * j);
        for (int i = 0; i < n; i++) {
            __m512bh row = (__m512bh)_mm512_set1_epi32(a[i * a_stride + pair]);
            for (int j = 0; j < 4; j++) sum[i][j] = _mm512_dpbf16_ps(sum[i][j], column[j], row);
        }
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < 4; j++) _mm512_store_ps(out + i * out_stride + 16 * j, sum[i][j]);
}

#ifdef HAVE_AMX
// The same for up to AMX_ROWS rows; tiles 0 … 3 are columns of out, 4 is a, 5 is b.
INLINE void multiply_tiles(const int add, int64_t pairs, const int32_t *a, int64_t a_stride, const int32_t *b,
                           int64_t b_stride, float *out, int64_t out_stride) {
    if (add) {
        _tile_loadd(0, out, out_stride * 4);
        _tile_loadd(1, out + 16, out_stride * 4);
        _tile_loadd(2, out + 32, out_stride * 4);
        _tile_loadd(3, out + 48, out_stride * 4);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t pair = 0; pair < pairs; pair += 16) {
        _tile_loadd(4, a + pair, a_stride * 4);
        _tile_loadd(5, b + pair * b_stride, b_stride * 4);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, b + pair * b_stride + 16, b_stride * 4);
        _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(5, b + pair * b_stride + 32, b_stride * 4);
        _tile_dpbf16ps(2, 4, 5);
        _tile_loadd(6, b + pair * b_stride + 48, b_stride * 4);
        _tile_dpbf16ps(3, 4, 6);
    }
    _tile_stored(0, out, out_stride * 4);
    _tile_stored(1, out + 16, out_stride * 4);
    _tile_stored(2, out + 32, out_stride * 4);
    _tile_stored(3, out + 48, out_stride * 4);
}

static void configure_tiles(int rows) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 7; i++) {
        config.bytes[i] = 64;
        config.rows[i] = i == 5 || i == 6 ? 16 : rows;
    }
    _tile_loadconfig(&config);
}
#endif

// As multiply_rows, for any number of the tile's rows.
INLINE void multiply(int n, const int add, int64_t pairs, const int32_t *a, int64_t a_stride, const int32_t *b,
                     int64_t b_stride, float *out, int64_t out_stride) {
#ifdef HAVE_AMX
    for (int row = 0; row < n; row += AMX_ROWS)
        multiply_tiles(add, pairs, a + row * a_stride, a_stride, b, b_stride, out + row * out_stride, out_stride);
#else
#define ROWS(count) \
    multiply_rows(count, add, pairs, a + row * a_stride, a_stride, b, b_stride, out + row * out_stride, out_stride)
    int row = 0;
    for (; row + GROUP <= n; row += GROUP) ROWS(GROUP);
    switch (n - row) {
        case 5: ROWS(5); break;
        case 4: ROWS(4); break;
        case 3: ROWS(3); break;
        case 2: ROWS(2); break;
        case 1: ROWS(1); break;
    }
#undef ROWS
#endif
}

// Turns row i's scores of the keys from `start` on into weights, and shrinks what it has so far accordingly.
static void weigh(Tile *tile, int i, int start, int64_t dim, float scale) {
    int seen = tile->visible[i] - start;
    uint64_t mask = seen >= KEYS ? ~0ull : seen <= 0 ? 0 : (1ull << seen) - 1;
    float before = tile->highest[i];
    __m512 s[4], high = _mm512_set1_ps(before);
    for (int j = 0; j < 4; j++) {
        s[j] = _mm512_mul_ps(_mm512_load_ps(&tile->scores[i][16 * j]), _mm512_set1_ps(scale));
        high = _mm512_mask_max_ps(high, (__mmask16)(mask >> (16 * j)), high, s[j]);
    }
    // Rounded up to a whole power of two: then weights of any other highest score differ in their exponents
    // alone, and it makes no difference to their rounding in which parts, and in how many, a context is read.
    float now = ceilf(_mm512_reduce_max_ps(high));
    __m512 total = _mm512_setzero_ps();
    for (int j = 0; j < 4; j++) {
        __m512 w = exp2_(_mm512_sub_ps(s[j], _mm512_set1_ps(now)));
        w = _mm512_maskz_mov_ps((__mmask16)(mask >> (16 * j)), w);
        total = _mm512_add_ps(total, w);
        _mm256_store_si256((__m256i *)&tile->weights[i][8 * j], (__m256i)_mm512_cvtneps_pbh(w));
    }
    float shrink = now == before ? 1.0f : exp2f(before - now);
    tile->highest[i] = now;
    tile->total[i] = tile->total[i] * shrink + _mm512_reduce_add_ps(total);
    if (shrink != 1.0f)
        for (int64_t d = 0; d < dim; d += 16)
            _mm512_store_ps(&tile->sums[i][d], _mm512_mul_ps(_mm512_load_ps(&tile->sums[i][d]), _mm512_set1_ps(shrink)));
}

static void attend_task(const Step *step, const Task *task, Tile *tile) {
    const Segment *segment = &step->segments[task->segment];
    const int32_t *blocks = step->blocks + segment->first_block;
    const int64_t dim = step->dim, heads = step->num_heads / step->num_kv_heads;
    const int64_t kv_stride = step->num_kv_heads * dim, kv_offset = task->kv_head * dim;
    const int first = task->first_tile_row, all = segment->num_rows * (int)heads;
    const int n = all - first < TILE_ROWS ? all - first : TILE_ROWS;
    int last_key = 0;
    for (int i = 0; i < n; i++) {
        int query = (first + i) / (int)heads, head = (first + i) % (int)heads;
        int64_t row = step->rows[segment->first_row + query];
        memcpy(tile->queries[i], step->q + row * step->q_stride + (task->kv_head * heads + head) * dim, dim * 2);
        memset(tile->sums[i], 0, dim * sizeof(float));
        tile->highest[i] = -INFINITY;
        tile->total[i] = 0.0f;
        tile->visible[i] = segment->num_keys - (segment->causal ? segment->num_rows - 1 - query : 0);
        if (tile->visible[i] > last_key) last_key = tile->visible[i];
    }
#ifdef HAVE_AMX
    configure_tiles(n < AMX_ROWS ? n : AMX_ROWS);
#endif
    const float scale = 1.44269504f / sqrtf((float)dim);  // powers of two, not of e
    Pass pass;
    for (int start = 0; start < last_key; start += KEYS) {
        pass.count = last_key - start < KEYS ? last_key - start : KEYS;
        for (int i = 0; i < pass.count; i++) {
            int64_t key = start + i;
            int64_t slot = blocks[key / step->block_size] * step->block_size + key % step->block_size;
            pass.key[i] = step->keys + slot * kv_stride + kv_offset;
            pass.value[i] = step->values + slot * kv_stride + kv_offset;
        }
        pack_keys(&pass, dim, tile->keys);
        pack_values(&pass, dim, tile->values);
        multiply(n, 0, dim / 2, tile->queries[0], MAX_DIM / 2, tile->keys[0], KEYS, tile->scores[0], KEYS);
        for (int i = 0; i < n; i++) weigh(tile, i, start, dim, scale);
        for (int64_t d = 0; d < dim; d += 64)
            multiply(n, 1, KEYS / 2, tile->weights[0], KEYS / 2, &tile->values[0][d], MAX_DIM, &tile->sums[0][d], MAX_DIM);
    }
    for (int i = 0; i < n; i++) {
        int query = (first + i) / (int)heads, head = (first + i) % (int)heads;
        int64_t place = segment->first_row + query, column = task->kv_head * heads + head;
        _Alignas(64) float whole[MAX_DIM];
        for (int64_t d = 0; d < dim; d += 32) unpermute(&tile->sums[i][d], &whole[d]);
        __m512 share = _mm512_set1_ps(1.0f / tile->total[i]);
        if (segment->alone) {
            bf16 *out = step->out + (step->rows[place] * step->num_heads + column) * dim;
            for (int64_t d = 0; d < dim; d += 16)
                _mm256_storeu_si256((__m256i *)&out[d],
                                    (__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(_mm512_load_ps(&whole[d]), share)));
        } else {
            int64_t at = (segment->part * step->num_shared + place) * step->num_heads + column;
            for (int64_t d = 0; d < dim; d += 16)
                _mm512_storeu_ps(&step->parts[at * dim + d], _mm512_mul_ps(_mm512_load_ps(&whole[d]), share));
            step->sums[at] = tile->highest[i] + log2f(tile->total[i]);
        }
    }
}

// A row's parts, each weighed by its share of all that its keys sum up to.
static void merge(const Step *step, int64_t place) {
    const int64_t dim = step->dim, stride = step->num_shared * step->num_heads;
    for (int64_t head = 0; head < step->num_heads; head++) {
        int64_t at = place * step->num_heads + head;
        float highest = -INFINITY, total = 0.0f;
        for (int64_t part = 0; part < step->num_parts; part++)
            highest = fmaxf(highest, step->sums[part * stride + at]);
        for (int64_t part = 0; part < step->num_parts; part++) total += exp2f(step->sums[part * stride + at] - highest);
        bf16 *out = step->out + (step->rows[place] * step->num_heads + head) * dim;
        for (int64_t d = 0; d < dim; d += 16) {
            __m512 sum = _mm512_setzero_ps();
            for (int64_t part = 0; part < step->num_parts; part++) {
                float sums = step->sums[part * stride + at];
                if (sums == -INFINITY) continue;
                float share = exp2f(sums - highest) / total;
                sum = _mm512_fmadd_ps(_mm512_set1_ps(share), _mm512_loadu_ps(&step->parts[(part * stride + at) * dim + d]), sum);
            }
            _mm256_storeu_si256((__m256i *)&out[d], (__m256i)_mm512_cvtneps_pbh(sum));
        }
    }
}

// Whether the system lets this process do what the file was compiled for; asked once.
int ready(void) {
#ifdef HAVE_AMX
    const long request_permission = 0x1023, tile_data = 18;  // arch_prctl(2) and the kernel's x86/xstate
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
    return 1;
#endif
}

void attend(const Step *step) {
#pragma omp parallel if (step->num_tasks > 1)
    {
        Tile tile;
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < step->num_tasks; i++) attend_task(step, &step->tasks[i], &tile);
#ifdef HAVE_AMX
        _tile_release();
#endif
#pragma omp for schedule(static)
        for (int64_t place = 0; place < step->num_shared; place++) merge(step, place);
    }
}
