#ifndef EPS_COMMON_GRPC_DOOR_FLAGS_H_
#define EPS_COMMON_GRPC_DOOR_FLAGS_H_

#include "common/grpc/doors.h"

namespace CLI {
class App;
}  // namespace CLI

// The flags of the doors, in every program the same. Secrets come from files: arguments can be read by every process
// of the machine.
namespace eps {

// --tls-cert --tls-key --tls-client-ca --token-file. `doors` outlives the parse.
void AddServerDoorFlags(CLI::App& app, ServerDoors& doors);

// --tls-ca --tls-cert --tls-key --token-file. `doors` outlives the parse.
void AddClientDoorFlags(CLI::App& app, ClientDoors& doors);

}  // namespace eps

#endif  // EPS_COMMON_GRPC_DOOR_FLAGS_H_
