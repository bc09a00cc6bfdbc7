#ifndef EPS_SERVER_SERVICE_WORKER_MESSAGES_H_
#define EPS_SERVER_SERVICE_WORKER_MESSAGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/schedule/vnode_batch.h"
#include "eps_server/aggregation/aggregator.h"
#include "eps_server/membership/membership.h"
#include "proto/control.pb.h"
#include "proto/data_plane.pb.h"

namespace eps::server {

// What a worker says, as plain structs. Here is checked what a message alone can tell; what must fit the run is checked
// by whom it is for.
//
// Errors: INVALID_ARGUMENT naming the field, the value found and the value wanted
absl::StatusOr<WorkerMemory> ToMemory(const proto::Ready& ready);
absl::StatusOr<PassTiming> ToTiming(const proto::PassDone& done);
std::vector<VnodeRecord> ToRecords(const proto::PassDone& done);
// `event` is one of a group's. What is longer than may be of why it failed is cut.
GroupReport ToGroupReport(const proto::WorkerEvent& event);
// Where the worker's HTTP page that listens on `told` is reached from elsewhere, if the worker is `peer` (as gRPC writes
// it, "ipv4:10.0.0.7:4711"). "": only from the worker's own machine, which is not this one.
std::string PageAddress(const std::string& told, const std::string& peer);
// Errors also: INTERNAL what the worker says of its failure
absl::StatusOr<std::vector<float>> ToLogits(const proto::Inferred& inferred);
// Errors also: FAILED_PRECONDITION another incarnation
absl::StatusOr<ContributionKey> ToKey(const proto::Offer& offer, uint64_t incarnation);

// Of a worker that speaks another version no other field can be trusted. Errors: FAILED_PRECONDITION naming both versions
absl::Status CheckProtocolVersion(uint32_t worker_version);

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_WORKER_MESSAGES_H_
