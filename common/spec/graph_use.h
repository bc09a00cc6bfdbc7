#ifndef EPS_COMMON_SPEC_GRAPH_USE_H_
#define EPS_COMMON_SPEC_GRAPH_USE_H_

namespace eps {

// Whether a GPU gets kernels that come again, with the same arguments, as one graph. Changes no bits.
enum class GraphUse {
  kAuto,  // where it was found waiting for the host to enqueue them
  kAlways,
  kNever,
};

}  // namespace eps

#endif  // EPS_COMMON_SPEC_GRAPH_USE_H_
