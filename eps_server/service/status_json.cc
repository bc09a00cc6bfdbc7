#include "eps_server/service/status_json.h"

#include <filesystem>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "common/grpc/proto_text.h"
#include "eps_server/service/status_reply.h"
#include "eps_server/service/without_folders.h"
#include "eps_server/step/run_status.h"
#include "google/protobuf/util/json_util.h"
#include "proto/control.pb.h"

namespace eps::server {

absl::StatusOr<std::string> StatusJson(const DaemonIdentity& identity, const DaemonView& view) {
  proto::StatusReply reply;
  if (view.phase == RunPhaseName(RunPhase::kStarting)) {
    FillStart(view.start_work, reply);
  } else {
    FillStatus(view.status, reply);
    reply.set_state(view.phase);
  }
  const auto without_folders = [&](const std::string& text) {
    return WithoutFolders(text, ProtoText(identity.folder));
  };
  reply.set_newest_checkpoint(std::filesystem::path(reply.newest_checkpoint()).filename().string());
  reply.set_failure(without_folders(reply.failure()));
  reply.set_checkpoint_error(without_folders(reply.checkpoint_error()));
  FillKeys(view.keys, absl::Now(), reply);
  if (reply.has_keys()) reply.mutable_keys()->set_not_reloaded(without_folders(reply.keys().not_reloaded()));
  if (reply.has_start_work()) reply.mutable_start_work()->set_what(without_folders(reply.start_work().what()));
  reply.set_incarnation(identity.page_incarnation);
  reply.set_run(identity.run);
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(reply, &text, options).ok()) {
    return absl::InternalError("the status cannot be written as JSON");
  }
  return text + "\n";
}

}  // namespace eps::server
