#ifndef EPS_SERVER_AGGREGATION_CONTRIBUTION_KEY_H_
#define EPS_SERVER_AGGREGATION_CONTRIBUTION_KEY_H_

#include <string>

#include "common/base/ids.h"
#include "common/schedule/chunk_range.h"
#include "common/schedule/reduction_tree.h"
#include "common/tensor/dtype.h"

namespace eps::server {

// Some chunks of one node of the reduction tree of one (step, blob, use): what a worker offers and then sends chunk by
// chunk. Parts of one node may overlap, and mix with whole blobs and with other nodes, as they like: what is counted is
// counted for each chunk on its own.
struct ContributionKey {
  StepId step;
  BlobId blob;
  int use = 0;
  TreeNode node;
  ChunkRange chunks;
  Dtype dtype = Dtype::kF32;
  int nonfinite_vnode = -1;  // a vnode of `node` whose gradient is not finite; -1: none
};

// "step 3, blob 7, use 0, node {0..3}, chunks 2..4" for messages.
std::string DebugString(const ContributionKey& key);

// What is answered to the offer of one.
enum class Verdict {
  kAdmitted,   // send its chunks
  kNotWanted,  // each of its chunks is counted already, or its step is over: release it
};

}  // namespace eps::server

#endif  // EPS_SERVER_AGGREGATION_CONTRIBUTION_KEY_H_
