#include "gpu_worker/device/cpu/attention.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "gpu_worker/device/cpu/thread_pool.h"
#include "gpu_worker/device/cpu/vector_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/device/cpu/attention.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After foreach_target.h: these are per target.
#include "gpu_worker/device/cpu/dropout-inl.h"
#include "gpu_worker/device/cpu/tile_product-inl.h"
#include "gpu_worker/device/cpu/vector_math-inl.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps::worker::cpu {
namespace HWY_NAMESPACE {
namespace {

inline constexpr int64_t kTile = kAttentionTile;
inline constexpr int64_t kSquare = kTile * kTile;
inline constexpr int64_t kPanel = kTile * kMaxHeadDim;
static_assert(kTile % kBlockColumns == 0 && kTile % kBlockRows == 0);

// One (sample, query head) of qkv (B, T, H + 2 kv_heads, D) or o (B, T, H, D).
struct HeadShape {
  int64_t b, h, T, H, kv_heads, D;
  bool causal;
  int64_t window;
  const int32_t* document_first;  // (T) of the sample, or null
  const int32_t* document_end;
  int64_t kv_head() const { return h / (H / kv_heads); }
  int64_t qkv_row() const { return (H + 2 * kv_heads) * D; }
  int64_t o_row() const { return H * D; }
  int64_t q_offset(int64_t t) const { return (b * T + t) * qkv_row() + h * D; }
  int64_t k_offset(int64_t t) const { return (b * T + t) * qkv_row() + (H + kv_head()) * D; }
  int64_t v_offset(int64_t t) const { return k_offset(t) + kv_heads * D; }
  int64_t o_offset(int64_t t) const { return ((b * T + t) * H + h) * D; }
  int64_t lse_offset(int64_t t) const { return (b * H + h) * T + t; }
};

// A tile of scores: q rows [i, i + ni), k rows [j, j + nj).
struct TilePlace {
  int64_t i, ni, j, nj;
  bool diagonal;  // q row c of the tile sees its k rows up to c
  int64_t band;   // k row r is seen by q rows before r + band: kTile if no window cuts the tile; may be negative
  // Where documents end within the tiles: of each q row the k rows of the tile that its document has, (kTile); or null.
  const int32_t* document_begin;
  const int32_t* document_end;

  struct Range {
    int64_t first, end;
  };
  // The k rows that all of a vector's q rows, from c on, see; none where documents end within the tiles, though there may be
  // some.
  Range SeenByAll(int64_t c) const {
    if (document_begin != nullptr) return {0, 0};
    const int64_t end = diagonal ? std::min(nj, c + 1) : nj;
    return {std::clamp<int64_t>(c + kVecLanes - band, 0, end), end};
  }
};

// The rows of a tile of q rows against one of k rows, for TilePlace.
struct TileDocuments {
  HWY_ALIGN int32_t begin[kTile];
  HWY_ALIGN int32_t end[kTile];
};

template <typename Args>
HWY_INLINE HeadShape ShapeOf(const Args& args, int64_t b, int64_t h) {
  return {.b = b,
          .h = h,
          .T = args.T,
          .H = args.H,
          .kv_heads = args.kv_heads,
          .D = args.D,
          .causal = args.causal,
          .window = args.window,
          .document_first = args.documents.first == nullptr ? nullptr : args.documents.first + b * args.T,
          .document_end = args.documents.first == nullptr ? nullptr : args.documents.end + b * args.T};
}

// The tiles of k rows that the tile of q rows at i sees begin in [FirstTile, EndOfTiles).
HWY_INLINE int64_t FirstTile(const HeadShape& s, int64_t i) {
  int64_t first = s.window == 0 ? 0 : std::max<int64_t>(0, i - s.window + 1);
  if (s.document_first != nullptr) first = std::max<int64_t>(first, s.document_first[i]);
  return first / kTile * kTile;
}
HWY_INLINE int64_t EndOfTiles(const HeadShape& s, int64_t i) {
  if (s.causal) return i + 1;
  return s.document_end == nullptr ? s.T : s.document_end[std::min(i + kTile, s.T) - 1];
}

// Of q rows, the first tile whose rows see some of the k rows at j.
HWY_INLINE int64_t FirstTileThatSees(const HeadShape& s, int64_t j) {
  if (s.causal) return j;
  return s.document_first == nullptr ? 0 : s.document_first[j] / kTile * kTile;
}

// `documents` outlives the result.
HWY_INLINE TilePlace TileAt(const HeadShape& s, int64_t i, int64_t j, TileDocuments& documents) {
  TilePlace at = {.i = i,
                  .ni = std::min(kTile, s.T - i),
                  .j = j,
                  .nj = std::min(kTile, s.T - j),
                  .diagonal = s.causal && i == j,
                  .band = s.window == 0 ? kTile : std::min(kTile, s.window + j - i),
                  .document_begin = nullptr,
                  .document_end = nullptr};
  if (s.document_first == nullptr) return at;
  bool ends_within = false;
  for (int64_t c = 0; c < kTile; ++c) {
    const int64_t row = i + std::min(c, at.ni - 1);
    documents.begin[c] = static_cast<int32_t>(std::clamp<int64_t>(s.document_first[row] - j, 0, kTile));
    documents.end[c] = static_cast<int32_t>(std::clamp<int64_t>(s.document_end[row] - j, 0, kTile));
    ends_within |= documents.begin[c] > 0 || documents.end[c] < at.nj;
  }
  // A causal row of a tile before its own sees no end.
  if (!ends_within) return at;
  at.document_begin = documents.begin;
  at.document_end = documents.end;
  return at;
}

// Which of a vector's q rows, from c on, see a k row. Made once per vector: Highway's Iota goes through memory.
class RowsThatSee {
 public:
  HWY_INLINE RowsThatSee(const TilePlace& at, int64_t c)
      : at_(at), c_(c), rows_(hn::Iota(DI(), static_cast<int32_t>(c))) {}
  HWY_INLINE hn::Mask<DF> Of(int64_t r) const {
    auto seen = hn::Lt(rows_, Number(r + at_.band));
    if (at_.diagonal) seen = hn::And(seen, hn::Gt(rows_, Number(r - 1)));
    if (at_.document_begin != nullptr) {
      seen = hn::And(seen, hn::Lt(hn::Load(DI(), at_.document_begin + c_), Number(r + 1)));
      seen = hn::And(seen, hn::Gt(hn::Load(DI(), at_.document_end + c_), Number(r)));
    }
    return hn::RebindMask(DF(), seen);
  }

 private:
  using DI = hn::RebindToSigned<DF>;
  static HWY_INLINE hn::Vec<DI> Number(int64_t r) { return hn::Set(DI(), static_cast<int32_t>(r)); }

  const TilePlace& at_;
  const int64_t c_;
  const hn::Vec<DI> rows_;
};

// x (columns of kTile lanes, `rows` of them) *= factor.
HWY_INLINE void ScaleRows(float* x, int64_t rows, float factor) {
  const DF d;
  for (int64_t at = 0; at < rows * kTile; at += kVecLanes) {
    hn::Store(hn::Mul(hn::Load(d, x + at), hn::Set(d, factor)), d, x + at);
  }
}

// dst (D, kTile) = rows (n, D) transposed; lanes from n on are zero.
HWY_INLINE void PackTransposed(const float* rows, int64_t row, int64_t n, int64_t D, float* dst) {
  if (n < kTile) std::memset(dst, 0, static_cast<size_t>(D * kTile) * sizeof(float));
  TransposeTile(rows, row, n, D, dst, kTile);
}

// dst (n, D) = rows * factor, dense.
HWY_INLINE void PackRows(const float* rows, int64_t row, int64_t n, int64_t D, float factor, float* dst) {
  const DF d;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t c = 0; c < D; c += kVecLanes) {
      StoreTail(hn::Mul(LoadTail(d, rows + i * row + c, D - c), hn::Set(d, factor)), d, dst + i * D + c, D - c);
    }
  }
}

// The dropout words of a tile of probabilities, (k row, q row) as the scores are. rows: room for one.
HWY_INLINE void KeepTile(const DropoutPlan& dropout, const HeadShape& s, const TilePlace& at, float* words,
                         float* rows) {
  HWY_ALIGN uint32_t buf[KeepBitsWords(kTile)];
  for (int64_t i = 0; i < at.ni; ++i) {
    const int64_t element = (s.lse_offset(at.i + i)) * s.T + at.j;
    std::memcpy(rows + i * kTile, KeepBits(dropout, element, kTile, buf), kTile * sizeof(float));
  }
  TransposeTile(rows, kTile, at.ni, kTile, words, kTile);
}

// The state of the running softmax of kTile q rows.
struct SoftmaxState {
  float* max;    // (kTile)
  float* sum;    // (kTile)
  float* scale;  // (kTile) out of a step: what earlier sums are multiplied by
};

// Scores (k row, q row) -> probabilities relative to the new maximum. What is not seen becomes 0,
// down to the last row that the following product reads.
HWY_INLINE void SoftmaxStep(float* scores, const TilePlace& at, const SoftmaxState& state, const DropoutPlan& dropout,
                            const float* words) {
  const DF d;
  const VF lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (int64_t c = 0; c < kTile; c += kVecLanes) {
    const int64_t end = at.diagonal ? std::min(at.nj, EndOfTriangle(c)) : at.nj;  // as kEndAtColumn reads
    const VF old_max = hn::Load(d, state.max + c);
    VF max = old_max;
    const auto take = [&](VF score) HWY_ATTR { max = hn::IfThenElse(hn::Gt(score, max), score, max); };
    const RowsThatSee rows(at, c);
    const auto mask = [&](TilePlace::Range range) HWY_ATTR {
      for (int64_t j = range.first; j < range.end; ++j) {
        const VF score = hn::IfThenElse(rows.Of(j), hn::Load(d, scores + j * kTile + c), lowest);
        hn::Store(score, d, scores + j * kTile + c);
        take(score);
      }
    };
    const TilePlace::Range all = at.SeenByAll(c);
    mask({0, all.first});
    for (int64_t j = all.first; j < all.end; ++j) take(hn::Load(d, scores + j * kTile + c));
    mask({all.end, end});
    const VF scale = Exp(d, hn::Sub(old_max, max));
    VF sum = hn::Mul(hn::Load(d, state.sum + c), scale);
    for (int64_t j = 0; j < end; ++j) {
      VF p = Exp(d, hn::Sub(hn::Load(d, scores + j * kTile + c), max));
      sum = hn::Add(sum, p);
      if (words != nullptr)
        p = DropV(dropout, p, hn::Load(DU32(), reinterpret_cast<const uint32_t*>(words) + j * kTile + c));
      hn::Store(p, d, scores + j * kTile + c);
    }
    hn::Store(max, d, state.max + c);
    hn::Store(sum, d, state.sum + c);
    hn::Store(scale, d, state.scale + c);
  }
}

// o rows = out_t columns / sum; lse = max + log(sum).
HWY_INLINE void FinishRows(const AttentionArgs& args, const HeadShape& s, const TilePlace& at,
                           const SoftmaxState& state, float* out_t) {
  const DF d;
  for (int64_t c = 0; c < kTile; c += kVecLanes) {
    const VF sum = hn::Load(d, state.sum + c);
    const VF log = hn::IfThenElse(hn::IsNaN(sum), sum, hn::Log(d, sum));
    StoreTail(hn::Add(hn::Load(d, state.max + c), log), d, args.lse + s.lse_offset(at.i) + c, at.ni - c);
    const VF inverse = hn::Div(hn::Set(d, 1.0f), sum);
    for (int64_t row = 0; row < s.D; ++row) {
      float* x = out_t + row * kTile + c;
      hn::Store(hn::Mul(hn::Load(d, x), inverse), d, x);
    }
  }
  TransposeTile(out_t, kTile, s.D, at.ni, static_cast<float*>(args.o) + s.o_offset(at.i), s.o_row());
}

// How often a product of a whole tile calls RowsAhead::Next, or so; a quarter less, as a diagonal skips some.
HWY_INLINE int64_t BlocksOf(int64_t rows, int64_t columns) {
  return std::max<int64_t>(1, rows / kBlockRows * ((columns + kBlockColumns - 1) / kBlockColumns) * 3 / 4);
}

// A tile of q rows of one (sample, query head).
struct ForwardTask {
  HeadShape s;
  int64_t i;
};
HWY_INLINE ForwardTask ForwardTaskAt(const AttentionArgs& args, int64_t task) {
  const int64_t q_tiles = (args.T + kTile - 1) / kTile, head = task / q_tiles;
  // The longest rows first, so that threads end together.
  return {ShapeOf(args, head / args.H, head % args.H), (q_tiles - 1 - task % q_tiles) * kTile};
}

// What comes after k rows j: those behind them, or what the next task begins with. Keys and values that a task of the same
// head has read are taken to be in the second cache still.
HWY_INLINE RowsAhead AheadOf(const AttentionArgs& args, int64_t task, int64_t j) {
  const float* qkv = static_cast<const float*>(args.qkv);
  RowsAhead ahead;
  const auto add_kv = [&](const HeadShape& s, int64_t at) {
    const int64_t n = std::min(kTile, s.T - at);
    ahead.Add(qkv + s.k_offset(at), s.qkv_row(), n, s.D);
    ahead.Add(qkv + s.v_offset(at), s.qkv_row(), n, s.D);
  };
  const auto [s, i] = ForwardTaskAt(args, task);
  if (j + kTile < EndOfTiles(s, i)) {
    if (i + kTile >= s.T) add_kv(s, j + kTile);
  } else if (task + 1 < args.B * args.H * ((args.T + kTile - 1) / kTile)) {
    const auto [next, next_i] = ForwardTaskAt(args, task + 1);
    const int64_t n = std::min(kTile, next.T - next_i);
    ahead.Add(qkv + next.q_offset(next_i), next.qkv_row(), n, next.D);
    const bool is_same_head = next.b == s.b && next.h == s.h;
    if (!is_same_head || FirstTile(next, next_i) < FirstTile(s, i)) add_kv(next, FirstTile(next, next_i));
    ahead.Add(static_cast<const float*>(args.o) + s.o_offset(i), s.o_row(), std::min(kTile, s.T - i), s.D);
  }
  ahead.SpreadOver(BlocksOf(kTile, kTile) + BlocksOf(s.D, kTile));
  return ahead;
}

void AttentionForwardImpl(const AttentionArgs& args, const DropoutPlan& dropout, int64_t task, float* scratch) {
  const auto [s, i] = ForwardTaskAt(args, task);
  float* q_t = scratch;             // (D, kTile), scaled
  float* out_t = q_t + kPanel;      // (D, kTile)
  float* scores = out_t + kPanel;   // (kTile, kTile)
  float* words = scores + kSquare;  // (kTile, kTile)
  float* rows = words + kSquare;    // (kTile, kTile)
  const SoftmaxState state = {rows + kSquare, rows + kSquare + kTile, rows + kSquare + 2 * kTile};
  const float* qkv = static_cast<const float*>(args.qkv);

  const int64_t first = FirstTile(s, i);
  TileDocuments documents;
  TilePlace at = TileAt(s, i, first, documents);
  PackTransposed(qkv + s.q_offset(i), s.qkv_row(), at.ni, s.D, q_t);
  ScaleRows(q_t, s.D, static_cast<float>(args.scale));
  std::fill(state.max, state.max + kTile, std::numeric_limits<float>::lowest());
  std::fill(state.sum, state.sum + kTile, 0.0f);

  for (int64_t j = first; j < EndOfTiles(s, i); j += kTile) {
    at = TileAt(s, i, j, documents);
    const float* k = qkv + s.k_offset(j);
    const float* v = qkv + s.v_offset(j);
    RowsAhead ahead = AheadOf(args, task, j);
    MultiplyTile(
        {.a = k, .a_row = s.qkv_row(), .a_k = 1, .b = q_t, .ldb = kTile, .c = scores, .ldc = kTile, .ahead = &ahead},
        at.nj, kTile, s.D, at.diagonal ? Triangle::kSkipColumnsBelowRow : Triangle::kFull);
    if (dropout.on) KeepTile(dropout, s, at, words, rows);
    SoftmaxStep(scores, at, state, dropout, dropout.on ? words : nullptr);
    MultiplyTile({.a = v,
                  .a_row = 1,
                  .a_k = s.qkv_row(),
                  .b = scores,
                  .ldb = kTile,
                  .c = out_t,
                  .ldc = kTile,
                  .add = j > first,
                  .column_scale = j > first ? state.scale : nullptr,
                  .ahead = &ahead},
                 s.D, kTile, at.nj, at.diagonal ? Triangle::kEndAtColumn : Triangle::kFull);
  }
  FinishRows(args, s, at, state, out_t);
}

// What the backward pass of kTile q rows keeps at hand.
struct BackwardRows {
  float* q_t;    // (D, kTile), scaled
  float* do_t;   // (D, kTile)
  float* q;      // (ni, D), scaled
  float* d_o;    // (ni, D)
  float* k;      // (nj, D)
  float* dq;     // (ni, D), without the scale
  float* p;      // (kTile, kTile) scores, then probabilities after dropout
  float* ds;     // (kTile, kTile) gradient of p, then of the scores
  float* words;  // (kTile, kTile)
  float* rows;   // (kTile, kTile)
  float* lse;    // (kTile)
  float* delta;  // (kTile): sums of d_o * o
};

HWY_INLINE void LoadRows(const AttentionBackwardArgs& args, const HeadShape& s, const TilePlace& at,
                         const BackwardRows& r) {
  const DF d;
  const float* q = static_cast<const float*>(args.qkv) + s.q_offset(at.i);
  const float* d_o = static_cast<const float*>(args.d_o) + s.o_offset(at.i);
  const float* o = static_cast<const float*>(args.o) + s.o_offset(at.i);
  PackRows(q, s.qkv_row(), at.ni, s.D, static_cast<float>(args.scale), r.q);
  PackRows(d_o, s.o_row(), at.ni, s.D, 1.0f, r.d_o);
  PackTransposed(r.q, s.D, at.ni, s.D, r.q_t);
  PackTransposed(r.d_o, s.D, at.ni, s.D, r.do_t);
  std::fill(r.lse, r.lse + kTile, 0.0f);
  std::fill(r.delta, r.delta + kTile, 0.0f);
  std::copy_n(args.lse + s.lse_offset(at.i), at.ni, r.lse);
  for (int64_t i = 0; i < at.ni; ++i) {
    RowSum sum;
    for (int64_t c = 0; c < s.D; c += kLogicalLanes) {
      for (int64_t l = 0; l < kAccs; ++l) {
        const int64_t e = c + l * kVecLanes;
        sum.acc[l] = hn::MulAdd(LoadTail(d, d_o + i * s.o_row() + e, s.D - e),
                                LoadTail(d, o + i * s.o_row() + e, s.D - e), sum.acc[l]);
      }
    }
    r.delta[i] = sum.Total();
  }
}

// p: scores -> probabilities after dropout; ds: their gradients -> the scores'. All rows of the
// tile are written, zero where masked.
HWY_INLINE void ScoreGradients(const TilePlace& at, const BackwardRows& r, const DropoutPlan& dropout) {
  const DF d;
  for (int64_t c = 0; c < kTile; c += kVecLanes) {
    const VF lse = hn::Load(d, r.lse + c), delta = hn::Load(d, r.delta + c);
    const RowsThatSee rows(at, c);
    const TilePlace::Range all = at.SeenByAll(c);
    for (int64_t j = 0; j < at.nj; ++j) {
      const int64_t e = j * kTile + c;
      VF p = Exp(d, hn::Sub(hn::Load(d, r.p + e), lse));
      VF dp = hn::Load(d, r.ds + e);
      if (j < all.first || j >= all.end) {  // also where the products were skipped
        const auto seen = rows.Of(j);
        p = hn::IfThenElseZero(seen, p);
        dp = hn::IfThenElseZero(seen, dp);
      }
      VF dropped = p;
      if (dropout.on) {
        const auto words = hn::Load(DU32(), reinterpret_cast<const uint32_t*>(r.words) + e);
        dropped = DropV(dropout, p, words);
        dp = DropV(dropout, dp, words);
      }
      hn::Store(dropped, d, r.p + e);
      hn::Store(hn::Mul(p, hn::Sub(dp, delta)), d, r.ds + e);
    }
  }
}

// The rows that a tile of the backward pass reads and writes: its q rows', unless they are at hand, and its k rows'.
HWY_INLINE void AddBackwardTile(const AttentionBackwardArgs& args, const HeadShape& s, int64_t i, int64_t j,
                                bool with_q, RowsAhead& ahead) {
  const float* qkv = static_cast<const float*>(args.qkv);
  const float* dqkv = static_cast<const float*>(args.dqkv);
  const int64_t ni = std::min(kTile, s.T - i), nj = std::min(kTile, s.T - j);
  if (with_q) {
    ahead.Add(qkv + s.q_offset(i), s.qkv_row(), ni, s.D);
    ahead.Add(static_cast<const float*>(args.d_o) + s.o_offset(i), s.o_row(), ni, s.D);
    ahead.Add(static_cast<const float*>(args.o) + s.o_offset(i), s.o_row(), ni, s.D);
    ahead.Add(dqkv + s.q_offset(i), s.qkv_row(), ni, s.D);
  }
  ahead.Add(qkv + s.k_offset(j), s.qkv_row(), nj, s.D);
  ahead.Add(qkv + s.v_offset(j), s.qkv_row(), nj, s.D);
  ahead.Add(dqkv + s.k_offset(j), s.qkv_row(), nj, s.D);
  ahead.Add(dqkv + s.v_offset(j), s.qkv_row(), nj, s.D);
}

// What comes after the tile of q rows i and k rows j: the next one of the head, or the first of the next head.
HWY_INLINE RowsAhead AheadOf(const AttentionBackwardArgs& args, const HeadShape& s, int64_t i, int64_t j) {
  RowsAhead ahead;
  if (j + kTile < EndOfTiles(s, i)) {
    if (FirstTileThatSees(s, j + kTile) == i) AddBackwardTile(args, s, i, j + kTile, /*with_q=*/false, ahead);
  } else if (i + kTile < s.T) {
    AddBackwardTile(args, s, i + kTile, FirstTile(s, i + kTile), /*with_q=*/true, ahead);
  } else if (const int64_t next = s.b * s.H + s.h + 1; next < args.B * args.H) {
    AddBackwardTile(args, ShapeOf(args, next / args.H, next % args.H), 0, 0, /*with_q=*/true, ahead);
  }
  ahead.SpreadOver(2 * BlocksOf(kTile, kTile) + 3 * BlocksOf(kTile, s.D));
  return ahead;
}

// Whether a tile's sums are added to what is there; else they are the first.
struct BackwardSums {
  bool onto_dq, onto_dkv;
};

HWY_INLINE void BackwardTile(const AttentionBackwardArgs& args, const HeadShape& s, const TilePlace& at,
                             const BackwardRows& r, const DropoutPlan& dropout, BackwardSums add, RowsAhead& ahead) {
  const float* k = static_cast<const float*>(args.qkv) + s.k_offset(at.j);
  const float* v = static_cast<const float*>(args.qkv) + s.v_offset(at.j);
  float* dk = static_cast<float*>(args.dqkv) + s.k_offset(at.j);
  float* dv = static_cast<float*>(args.dqkv) + s.v_offset(at.j);
  const bool diagonal = at.diagonal;
  const Triangle scores = diagonal ? Triangle::kSkipColumnsBelowRow : Triangle::kFull;
  PackRows(k, s.qkv_row(), at.nj, s.D, 1.0f, r.k);
  TileProduct p = {.a = r.k, .a_row = s.D, .a_k = 1, .b = r.q_t, .ldb = kTile, .c = r.p, .ldc = kTile, .ahead = &ahead};
  MultiplyTile(p, at.nj, kTile, s.D, scores);
  p = {.a = v, .a_row = s.qkv_row(), .a_k = 1, .b = r.do_t, .ldb = kTile, .c = r.ds, .ldc = kTile, .ahead = &ahead};
  MultiplyTile(p, at.nj, kTile, s.D, scores);
  if (dropout.on) KeepTile(dropout, s, at, r.words, r.rows);
  ScoreGradients(at, r, dropout);
  const Triangle sums = diagonal ? Triangle::kStartAtRow : Triangle::kFull;
  p = {.a = r.p, .a_row = kTile, .a_k = 1, .b = r.d_o, .ldb = s.D, .c = dv, .ldc = s.qkv_row(), .add = add.onto_dkv};
  p.ahead = &ahead;
  MultiplyTile(p, at.nj, s.D, at.ni, sums);
  p.a = r.ds, p.b = r.q, p.c = dk;
  MultiplyTile(p, at.nj, s.D, at.ni, sums);
  p = {.a = r.ds, .a_row = 1, .a_k = kTile, .b = r.k, .ldb = s.D, .c = r.dq, .ldc = s.D, .add = add.onto_dq};
  p.ahead = &ahead;
  MultiplyTile(p, at.ni, s.D, at.nj, diagonal ? Triangle::kEndAtRow : Triangle::kFull);
}

// The gradients of one head of queries, and what it adds to those of its keys and values.
HWY_INLINE void BackwardHead(const AttentionBackwardArgs& args, const HeadShape& s, const BackwardRows& r,
                             const DropoutPlan& dropout) {
  const DF d;
  const bool first_of_group = s.h % (s.H / s.kv_heads) == 0;
  for (int64_t i = 0; i < s.T; i += kTile) {
    const int64_t first = FirstTile(s, i);
    TileDocuments documents;
    const TilePlace rows = TileAt(s, i, first, documents);
    LoadRows(args, s, rows, r);
    for (int64_t j = first; j < EndOfTiles(s, i); j += kTile) {
      const bool first_of_head = i == FirstTileThatSees(s, j);  // and so touches these rows of dk and dv
      RowsAhead ahead = AheadOf(args, s, i, j);
      BackwardTile(args, s, TileAt(s, i, j, documents), r, dropout,
                   {.onto_dq = j > first, .onto_dkv = !(first_of_group && first_of_head)}, ahead);
    }
    float* dq = static_cast<float*>(args.dqkv) + s.q_offset(i);
    for (int64_t row = 0; row < rows.ni; ++row) {
      for (int64_t c = 0; c < s.D; c += kVecLanes) {
        const VF v = hn::Mul(LoadTail(d, r.dq + row * s.D + c, s.D - c), hn::Set(d, static_cast<float>(args.scale)));
        StoreTail(v, d, dq + row * s.qkv_row() + c, s.D - c);
      }
    }
  }
}

void AttentionBackwardImpl(const AttentionBackwardArgs& args, const DropoutPlan& dropout, int64_t task,
                           float* scratch) {
  float* squares = scratch + 6 * kPanel;
  const BackwardRows r = {.q_t = scratch,
                          .do_t = scratch + kPanel,
                          .q = scratch + 2 * kPanel,
                          .d_o = scratch + 3 * kPanel,
                          .k = scratch + 4 * kPanel,
                          .dq = scratch + 5 * kPanel,
                          .p = squares,
                          .ds = squares + kSquare,
                          .words = squares + 2 * kSquare,
                          .rows = squares + 3 * kSquare,
                          .lse = squares + 4 * kSquare,
                          .delta = squares + 4 * kSquare + kTile};
  const int64_t group = args.H / args.kv_heads, b = task / args.kv_heads, kv_head = task % args.kv_heads;
  for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
    BackwardHead(args, ShapeOf(args, b, h), r, dropout);
  }
}

static_assert(2 * kPanel + 3 * kSquare + 3 * kTile <= kTileScratchFloats);
static_assert(6 * kPanel + 4 * kSquare + 2 * kTile <= kTileScratchFloats);

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::worker::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps::worker::cpu {

HWY_EXPORT(AttentionForwardImpl);
HWY_EXPORT(AttentionBackwardImpl);

int64_t AttentionForwardTasks(const AttentionArgs& args) {
  return args.B * args.H * ((args.T + kAttentionTile - 1) / kAttentionTile);
}
void AttentionForwardTask(const AttentionArgs& args, const DropoutPlan& dropout, int64_t task, float* scratch) {
  HWY_DYNAMIC_DISPATCH(AttentionForwardImpl)(args, dropout, task, scratch);
}

int64_t AttentionBackwardTasks(const AttentionBackwardArgs& args) { return args.B * args.kv_heads; }
void AttentionBackwardTask(const AttentionBackwardArgs& args, const DropoutPlan& dropout, int64_t task,
                           float* scratch) {
  HWY_DYNAMIC_DISPATCH(AttentionBackwardImpl)(args, dropout, task, scratch);
}

}  // namespace eps::worker::cpu
#endif  // HWY_ONCE
