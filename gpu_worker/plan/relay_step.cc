#include "gpu_worker/plan/relay_step.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace eps::worker {
namespace {

using Kind = RelayStep::Kind;

absl::string_view KindName(Kind kind) {
  switch (kind) {
    case Kind::kPull:
      return "pull";
    case Kind::kExpand:
      return "expand";
    case Kind::kLoadTokens:
      return "load_tokens";
    case Kind::kLoadDocuments:
      return "load_documents";
    case Kind::kLoadBoundary:
      return "load_boundary";
    case Kind::kLoadGradient:
      return "load_gradient";
    case Kind::kForward:
      return "forward";
    case Kind::kRecompute:
      return "recompute";
    case Kind::kHead:
      return "head";
    case Kind::kLogits:
      return "logits";
    case Kind::kLoss:
      return "loss";
    case Kind::kBackward:
      return "backward";
    case Kind::kStoreBoundary:
      return "store_boundary";
    case Kind::kStoreGradient:
      return "store_gradient";
    case Kind::kStoreInner:
      return "store_inner";
    case Kind::kLoadInner:
      return "load_inner";
    case Kind::kZeroGradient:
      return "zero_gradient";
    case Kind::kFinishLeaf:
      return "finish_leaf";
    case Kind::kAddGradient:
      return "add_gradient";
    case Kind::kEmitGradient:
      return "emit_gradient";
    case Kind::kEmitLeaf:
      return "emit_leaf";
    case Kind::kPush:
      return "push";
    case Kind::kStartRecord:
      return "start_record";
    case Kind::kStoreRecord:
      return "store_record";
    case Kind::kExchange:
      return "exchange";
    case Kind::kSumGroup:
      return "sum_group";
    case Kind::kPushPart:
      return "push_part";
  }
  return "unknown";
}

bool HasNode(const RelayStep& step) {
  switch (step.kind) {
    case Kind::kFinishLeaf:
    case Kind::kAddGradient:
    case Kind::kEmitGradient:
    case Kind::kEmitLeaf:
    case Kind::kPush:
      return true;
    case Kind::kExchange:
      return step.push >= 0;  // this worker gives one
    default:
      return false;
  }
}

}  // namespace

StreamId RelayStep::stream() const {
  switch (kind) {
    case Kind::kPull:
    case Kind::kLoadInner:
      return StreamId::kIn;
    case Kind::kLoadDocuments:
    case Kind::kLoadBoundary:
    case Kind::kLoadGradient:
    case Kind::kStoreBoundary:
    case Kind::kStoreGradient:
    case Kind::kStoreInner:
    case Kind::kPush:
    case Kind::kStoreRecord:
    case Kind::kExchange:
    case Kind::kPushPart:
      return StreamId::kOut;
    default:
      return StreamId::kCompute;
  }
}

WaitCause RelayStep::cause() const {
  switch (stream()) {
    case StreamId::kIn:
      return kind == Kind::kPull ? WaitCause::kPull : WaitCause::kStash;
    case StreamId::kOut:
      return kind == Kind::kPush || kind == Kind::kExchange || kind == Kind::kPushPart ? WaitCause::kPush
                                                                                       : WaitCause::kStash;
    case StreamId::kCompute:
      return WaitCause::kNone;
  }
  return WaitCause::kNone;
}

std::string Title(const RelayStep& step, const ModelSpec& model) {
  return absl::StrCat(KindName(step.kind), " ", model.layer(step.layer).name);
}

std::string DebugString(const RelayStep& step, const ModelSpec& model) {
  std::string text = Title(step, model);
  if (step.backward) absl::StrAppend(&text, " back");
  const auto field = [&](absl::string_view name, int value) {
    if (value >= 0) absl::StrAppend(&text, " ", name, " ", value);
  };
  field("vnode", step.vnode);
  field("micro-batch", step.micro_batch);
  if (HasNode(step)) {
    absl::StrAppend(&text, " node ", DebugString(step.node));
  }
  field("weights", step.weights);
  field("tokens", step.tokens);
  field("input", step.input);
  field("output", step.output);
  field("inner", step.inner);
  field("gradient", step.gradient);
  field("from gradient", step.other_gradient);
  field("push", step.push);
  field("flags", step.flags);
  field("record", step.record);
  field("host", step.host);
  field("round", step.round);
  field("flag turn", step.flag_turn);
  if (step.keeps_logits) absl::StrAppend(&text, " keeps logits");
  if (step.starts_gradient) absl::StrAppend(&text, " starts gradient");
  if (!step.may_wait) absl::StrAppend(&text, " must not wait");
  for (const int other : step.waits_for) absl::StrAppend(&text, " after ", other);
  return text;
}

}  // namespace eps::worker
