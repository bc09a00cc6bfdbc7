#include "eps_server/service/method_roles.h"

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/security/token.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "proto/control.pb.h"
#include "proto/data_plane.pb.h"

namespace eps::server {
namespace {

// Of all calls of the services in a proto file those that the role, and no lesser one, may make.
std::set<std::string> Methods(const google::protobuf::FileDescriptor& file, Role role) {
  std::set<std::string> methods;
  for (int i = 0; i < file.service_count(); ++i) {
    const google::protobuf::ServiceDescriptor& service = *file.service(i);
    for (int j = 0; j < service.method_count(); ++j) {
      const std::string& name = service.method(j)->name();
      if (RoleOfMethod(absl::StrCat("/", service.full_name(), "/", name)) == role) methods.insert(name);
    }
  }
  return methods;
}

TEST(MethodRolesTest, EachCallIsOfTheRoleThatTheDocumentsSay) {
  const auto& control = *proto::AttachRequest::descriptor()->file();
  EXPECT_EQ(Methods(control, Role::kViewer), std::set<std::string>{"GetStatus"});
  EXPECT_EQ(Methods(control, Role::kWorker), (std::set<std::string>{"Attach", "Events"}));
  EXPECT_EQ(Methods(control, Role::kOperator),
            (std::set<std::string>{"Checkpoint", "Drain", "ExpectWorkers", "FollowOrders", "Generate", "StartWorkers",
                                   "Stop"}));
  const auto& data = *proto::PullRequest::descriptor()->file();
  EXPECT_EQ(Methods(data, Role::kWorker), (std::set<std::string>{"Pull", "Push"}));
  EXPECT_EQ(Methods(data, Role::kViewer), std::set<std::string>{});
  EXPECT_EQ(Methods(data, Role::kOperator), std::set<std::string>{});
}

TEST(MethodRolesTest, HealthIsForAllAndWhatIsNotKnownForOperators) {
  EXPECT_EQ(RoleOfMethod("/grpc.health.v1.Health/Check"), Role::kViewer);
  EXPECT_EQ(RoleOfMethod("/grpc.health.v1.Health/Watch"), Role::kViewer);
  for (const char* other : {"", "/eps.proto.Control/", "/eps.proto.Control/getstatus", "eps.proto.Control/GetStatus",
                            "/eps.proto.Control/GetStatus2"}) {
    EXPECT_EQ(RoleOfMethod(other), Role::kOperator) << other;
  }
}

}  // namespace
}  // namespace eps::server
