#ifndef EPS_COMMON_SCHEDULE_GROUP_LIMITS_H_
#define EPS_COMMON_SCHEDULE_GROUP_LIMITS_H_

#include <cstddef>

// What bounds a group of workers, in both ends of the control plane (proto/control.proto) and in RunSpecs.
namespace eps {

inline constexpr int kMaxGroupMembers = 64;
inline constexpr size_t kMaxGroupKindBytes = 256;    // what a worker would form one with
inline constexpr size_t kMaxGroupTokenBytes = 1024;  // with which the others join

}  // namespace eps

#endif  // EPS_COMMON_SCHEDULE_GROUP_LIMITS_H_
