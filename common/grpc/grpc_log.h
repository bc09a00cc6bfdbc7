#ifndef EPS_COMMON_GRPC_GRPC_LOG_H_
#define EPS_COMMON_GRPC_GRPC_LOG_H_

namespace eps {

// What gRPC says by itself goes into this process's log, in its format: errors alone (GRPC_VERBOSITY asks for more), and
// at most one line a second, with how many there were: a stranger at the door makes gRPC say something each time.
// Once, before gRPC is used.
void LogGrpcErrors();

}  // namespace eps

#endif  // EPS_COMMON_GRPC_GRPC_LOG_H_
