#include "eps_server/aggregation/window_size.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "common/schedule/pushed_nodes.h"
#include "common/schedule/reduction_tree.h"

namespace eps::server {
namespace {

// That all workers push of an element.
int64_t PushedBytes(int virtual_nodes, Dtype gradients, int workers) {
  int64_t num_bytes = 0;
  workers = std::min(workers, virtual_nodes);
  for (int64_t worker = 0; worker < workers; ++worker) {
    const auto first = static_cast<int>(worker * virtual_nodes / workers);
    std::vector<int> vnodes(static_cast<size_t>((worker + 1) * virtual_nodes / workers - first));
    std::iota(vnodes.begin(), vnodes.end(), first);
    for (const TreeNode& node : PushedNodes(vnodes, virtual_nodes, virtual_nodes, gradients)) {
      num_bytes += SizeOf(PushedDtype(node, gradients));
    }
  }
  return num_bytes;
}

}  // namespace

int64_t DefaultWindowBytes(const ModelSpec& model, int virtual_nodes, Dtype gradients, int workers) {
  int64_t largest_elems = 0, shared_elems = 0, coming_elems = 0;
  for (const BlobSpec& blob : model.blobs) {
    if (blob.frozen) continue;
    const auto later_uses = static_cast<int64_t>(blob.uses.size()) - 1;
    largest_elems = std::max(largest_elems, blob.num_elems);
    shared_elems += later_uses * blob.num_elems;
    coming_elems = std::max(coming_elems, (later_uses > 0 ? 1 : 2) * blob.num_elems);
  }
  return std::max(4 * largest_elems * int64_t{sizeof(float)},
                  (shared_elems + coming_elems) * PushedBytes(virtual_nodes, gradients, workers));
}

}  // namespace eps::server
