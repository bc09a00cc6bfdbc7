// A pull through shared memory against a plain memcpy of the same bytes, from memory of this process to the same
// destination. The daemon's side is a process of its own, with its own store. In turn (A B A B); the ratio is the median of
// the rounds' own, so that what else the machine does meanwhile counts less. As in training, a pull is of another blob than
// the one before, and the blobs together are more than a processor's cache holds; the copies are of as many.
//
//   shared_memory_bench [rounds]     25 by default

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "bench/support.h"
#include "common/base/ids.h"
#include "common/base/median.h"
#include "common/base/status_macros.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "eps_server/service/shared_memory_server.h"
#include "eps_server/store/store.h"
#include "gpu_worker/transport/shared_memory_transport.h"
#include "gpu_worker/transport/transport.h"
#include "nlohmann/json.hpp"

namespace eps::bench {
namespace {

constexpr uint64_t kIncarnation = 1;
constexpr int kNumBlobs = 4;  // 57 MB in bf16
constexpr int kPullsPerRound = 2 * kNumBlobs;
using Clock = std::chrono::steady_clock;

ModelSpec BenchModel() {
  // Blocks of GPT-2 small: 14 MB each in bf16, 28 MB in fp32. The rest of the model is small.
  return BuildModel({.num_layers = kNumBlobs, .d_model = 768, .num_heads = 12, .context = 8, .vocab = 8}).value();
}

BlobId Block(const ModelSpec& model, int i) { return model.layers[static_cast<size_t>(i + 1)].blobs.front().blob; }

RunConfig BenchRun(const ModelSpec& model, Dtype dtype) {
  RunConfig run;
  run.model = model.config;
  run.optimizer.rule = OptimizerRule::kSgd;
  run.precision = {.wire = dtype, .gradients = dtype};
  return run;
}

// Writes the socket's path, a line for each dtype, and serves until it is killed.
void Serve(int out_fd) {
  const ModelSpec model = BenchModel();
  std::vector<std::unique_ptr<server::Store>> stores;
  std::vector<std::unique_ptr<server::SharedMemoryServer>> servers;
  std::string paths;
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
    const RunConfig run = BenchRun(model, dtype);
    stores.push_back(server::Store::Create(model, run).value());
    for (int i = 0; i < kNumBlobs; ++i) {
      const BlobId blob = Block(model, i);
      const std::vector<float> values(static_cast<size_t>(model.blob(blob).num_elems), 1.5f);
      EPS_CHECK(stores.back()->LoadMaster(blob, Version(0), 0, values).ok());
      stores.back()->Publish(blob, Version(0));
    }
    servers.push_back(server::SharedMemoryServer::Start({.incarnation = kIncarnation,
                                                         .model = &model,
                                                         .store = stores.back().get(),
                                                         .last_version = Version(0),
                                                         .max_inbox_bytes = server::MaxInboxBytes(model, run)})
                          .value());
    paths += servers.back()->path() + "\n";
  }
  EPS_CHECK(write(out_fd, paths.data(), paths.size()) == static_cast<ssize_t>(paths.size()));
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  int number = 0;
  sigwait(&ends, &number);  // blocked before the fork: the servers remove their sockets
}

double GigabytesPerSecond(int times, int64_t num_bytes, const std::function<void(int blob)>& call) {
  const auto start = Clock::now();
  for (int i = 0; i < times; ++i) call(i % kNumBlobs);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return static_cast<double>(times * num_bytes) / 1e9 / seconds;
}

std::unique_ptr<worker::Transport> Connect(const std::string& path, const ModelSpec& model, Dtype dtype) {
  return worker::ConnectSharedMemory({.socket_path = path,
                                      .incarnation = kIncarnation,
                                      .worker_id = WorkerId(1),
                                      .model = &model,
                                      .wire_dtype = dtype,
                                      .wire_versions = BenchRun(model, dtype).precision.wire_versions})
      .value();
}

nlohmann::ordered_json Measure(const std::string& path, const ModelSpec& model, Dtype dtype, int rounds) {
  const BlobSpec& first = model.blob(Block(model, 0));
  const int64_t num_bytes = first.num_elems * SizeOf(dtype);
  const std::unique_ptr<worker::Transport> transport = Connect(path, model, dtype);
  const absl::Span<std::byte> sources = NewMemory(kNumBlobs * num_bytes), destination = NewMemory(num_bytes);
  std::vector<double> pulls, copies, ratios, wait_micros;
  for (int round = -1; round < rounds; ++round) {  // the first warms up
    const double pull = GigabytesPerSecond(kPullsPerRound, num_bytes, [&](int blob) {
      EPS_CHECK(transport->Pull(Block(model, blob), Version(0), first.all_chunks(), destination).ok());
    });
    const double copy = GigabytesPerSecond(kPullsPerRound, num_bytes, [&](int blob) {
      std::memcpy(destination.data(), sources.data() + blob * num_bytes, destination.size());
    });
    const auto start = Clock::now();
    EPS_CHECK(transport->Await(Block(model, 0), Version(0), first.all_chunks()).ok());
    const double wait = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    if (round < 0) continue;
    pulls.push_back(pull);
    copies.push_back(copy);
    ratios.push_back(pull / copy);
    wait_micros.push_back(wait);
  }
  return {{"pull_gb_per_second", Median(pulls)},
          {"memcpy_gb_per_second", Median(copies)},
          {"ratio", Median(ratios)},
          {"in_place_micros", Median(wait_micros)}};
}

int Main(int rounds) {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigprocmask(SIG_BLOCK, &ends, nullptr);
  const Peer peer = StartPeer(2, Serve);
  const ModelSpec model = BenchModel();
  nlohmann::ordered_json json = {{"name", "shared_memory"}, {"ratio", 1e9}};
  std::printf("%d blobs in turn, blocks of GPT-2 small of %lld chunks; medians of %d rounds\n", kNumBlobs,
              static_cast<long long>(model.blob(Block(model, 0)).num_chunks()), rounds);
  std::printf("%-5s %12s %14s %14s %20s\n", "wire", "pull GB/s", "memcpy GB/s", "pull / memcpy", "in place: answer us");
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
    const std::string name = dtype == Dtype::kBf16 ? "bf16" : "fp32";
    const nlohmann::ordered_json side = Measure(peer.lines[dtype == Dtype::kBf16 ? 0 : 1], model, dtype, rounds);
    std::printf("%-5s %12.2f %14.2f %14.3f %20.1f\n", name.c_str(), side["pull_gb_per_second"].get<double>(),
                side["memcpy_gb_per_second"].get<double>(), side["ratio"].get<double>(),
                side["in_place_micros"].get<double>());
    json[name] = side;
    json["ratio"] = std::min(json["ratio"].get<double>(), side["ratio"].get<double>());
  }
  EndPeer(peer);
  std::printf("%s\n", json.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace eps::bench

int main(int argc, char** argv) { return eps::bench::Main(argc > 1 ? std::max(1, std::atoi(argv[1])) : 25); }
