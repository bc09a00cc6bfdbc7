#include "eps_server/service/method_roles.h"

#include <utility>

namespace eps::server {
namespace {

constexpr std::pair<absl::string_view, Role> kRoles[] = {
    {"/grpc.health.v1.Health/Check", Role::kViewer},    {"/grpc.health.v1.Health/Watch", Role::kViewer},
    {"/eps.proto.Control/GetStatus", Role::kViewer},    {"/eps.proto.Control/Attach", Role::kWorker},
    {"/eps.proto.Control/Events", Role::kWorker},       {"/eps.proto.DataPlane/Pull", Role::kWorker},
    {"/eps.proto.DataPlane/Push", Role::kWorker},       {"/eps.proto.Control/ExpectWorkers", Role::kOperator},
    {"/eps.proto.Control/Checkpoint", Role::kOperator}, {"/eps.proto.Control/Stop", Role::kOperator},
    {"/eps.proto.Control/Drain", Role::kOperator},      {"/eps.proto.Control/StartWorkers", Role::kOperator},
    {"/eps.proto.Control/Generate", Role::kOperator},
};

}  // namespace

Role RoleOfMethod(absl::string_view method) {
  for (const auto& [name, role] : kRoles) {
    if (name == method) return role;
  }
  return Role::kOperator;
}

}  // namespace eps::server
