#include "eps_server/checkpoint/state_capture.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "common/spec/moment_format.h"
#include "common/tensor/dtype.h"
#include "eps_server/checkpoint/capture_size.h"

namespace eps::server {
namespace {

absl::Status CheckOrder(const ModelSpec& model, std::vector<BlobId> order) {
  std::sort(order.begin(), order.end());
  bool whole = order.size() == model.blobs.size();
  for (size_t i = 0; whole && i < order.size(); ++i) whole = order[i] == BlobId(static_cast<int32_t>(i));
  if (whole) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("order: ", order.size(), " blobs that are not each of ", model.blobs.size(), " once"));
}

}  // namespace

absl::StatusOr<StateCapture> StateCapture::Create(const Store& store, const ModelSpec& model, Version version,
                                                  std::vector<BlobId> order, std::function<void(BlobId)> captured,
                                                  CaptureBuffer& buffer) {
  EPS_RETURN_IF_ERROR(CheckOrder(model, order));
  return StateCapture(store, model, version, std::move(order), std::move(captured), buffer);
}

StateCapture::StateCapture(const Store& store, const ModelSpec& model, Version version, std::vector<BlobId> order,
                           std::function<void(BlobId)> captured, CaptureBuffer& buffer)
    : store_(&store),
      model_(&model),
      version_(version),
      order_(std::move(order)),
      captured_(std::move(captured)),
      buffer_(&buffer) {}

absl::Status StateCapture::Fill() {
  while (next_blob_ < order_.size()) {
    EPS_ASSIGN_OR_RETURN(const bool has_room, CopyNext());
    if (!has_room) break;
    const BlobId blob = order_[next_blob_];
    if (++next_chunk_ < model_->blob(blob).num_chunks()) continue;
    next_chunk_ = 0;
    ++next_blob_;
    captured_(blob);
  }
  EPS_CHECK(next_blob_ == order_.size() || !chunks_.empty());  // else the buffer is smaller than a chunk
  return absl::OkStatus();
}

absl::StatusOr<bool> StateCapture::CopyNext() {
  const BlobSpec& blob = model_->blob(order_[next_blob_]);
  CapturedChunk chunk{
      .blob = blob.id, .first_elem = next_chunk_ * kChunkElems, .num_elems = blob.chunk_elems(next_chunk_)};
  if (blob.frozen) {
    chunk.wire = store_->Wire(blob.id, version_).data() +
                 blob.part_first_byte({.first = next_chunk_, .count = 1}, store_->wire_dtype());
    chunks_.push_back(chunk);
    return true;
  }
  if (next_chunk_ == 0) {
    for (int64_t i = 0; i < blob.num_chunks(); ++i) store_->Prefetch(blob.id, i);
  }
  std::byte* const state =
      buffer_->Push(static_cast<size_t>(CapturedChunkBytes(num_moments(), moment_format(), chunk.num_elems)));
  if (state == nullptr) return false;
  chunk.state = state;
  const int64_t num_bytes =
      int64_t{sizeof(float)} * chunk.num_elems + num_moments() * MomentBytes(moment_format(), chunk.num_elems);
  EPS_RETURN_IF_ERROR(
      store_->ReadChunk(blob.id, next_chunk_, version_, absl::MakeSpan(state, static_cast<size_t>(num_bytes))));
  chunks_.push_back(chunk);
  return true;
}

void StateCapture::Pop() {
  EPS_CHECK(!chunks_.empty());
  if (chunks_.front().state != nullptr) buffer_->Pop();
  chunks_.pop_front();
}

}  // namespace eps::server
