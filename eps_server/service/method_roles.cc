#include "eps_server/service/method_roles.h"

#include <utility>

namespace eps::server {
namespace {

// Of the calls that less than an operator may make; all others are not here.
constexpr std::pair<absl::string_view, Role> kRoles[] = {
    {"/grpc.health.v1.Health/Check", Role::kViewer}, {"/grpc.health.v1.Health/Watch", Role::kViewer},
    {"/eps.proto.Control/GetStatus", Role::kViewer}, {"/eps.proto.Control/Attach", Role::kWorker},
    {"/eps.proto.Control/Events", Role::kWorker},    {"/eps.proto.DataPlane/Pull", Role::kWorker},
    {"/eps.proto.DataPlane/Push", Role::kWorker},
};

}  // namespace

Role RoleOfMethod(absl::string_view method) {
  for (const auto& [name, role] : kRoles) {
    if (name == method) return role;
  }
  return Role::kOperator;
}

}  // namespace eps::server
