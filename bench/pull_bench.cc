// Pull throughput over loopback: a worker's transport from a daemon's data service, against a bare gRPC stream of
// messages of the same size, sent as they lie in memory and received to be thrown away. In the same two processes, in
// turn (A B A B); a ratio is the median of the rounds' own, so that what else the machine does meanwhile counts less.
//
// The bare stream is read in three ways: with gRPC's defaults, and with the settings of our data plane by callbacks and
// from a queue of its own. `ratio` is the smaller of those to the latter two.
//
//   pull_bench [rounds]     60 by default

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/malloc_settings.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/grpc/byte_buffers.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "eps_server/service/data_service.h"
#include "eps_server/service/rpc_server.h"
#include "eps_server/store/store.h"
#include "gpu_worker/transport/grpc_channel.h"
#include "gpu_worker/transport/grpc_transport.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

constexpr uint64_t kIncarnation = 1;
constexpr BlobId kWte(0);
using Clock = std::chrono::steady_clock;

constexpr int kPullsPerRound = 4;

// Zeroed, in huge pages where the system has them, as the store's and the arena's memory is. Never given back.
absl::Span<std::byte> NewMemory(int64_t num_bytes) {
  constexpr int64_t kHugePage = 2 << 20;
  const size_t rounded = static_cast<size_t>((num_bytes + kHugePage - 1) / kHugePage * kHugePage);
  void* memory = std::aligned_alloc(kHugePage, rounded);
  EPS_CHECK(memory != nullptr);
  madvise(memory, rounded, MADV_HUGEPAGE);
  std::memset(memory, 1, rounded);
  return absl::MakeSpan(static_cast<std::byte*>(memory), static_cast<size_t>(num_bytes));
}

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

ModelSpec BenchModel() {
  // 27 whole chunks, as a block of GPT-2 small has: 13.5 MiB in bf16, 27 MiB in fp32. The rest of the model is small.
  return BuildGpt2({.num_layers = 1, .d_model = 768, .num_heads = 12, .context = 8, .vocab = 9216}).value();
}

RunConfig BenchRun(const ModelSpec& model, Dtype dtype) {
  RunConfig run;
  run.model = model.config;
  run.optimizer.rule = OptimizerRule::kSgd;
  run.precision = {.wire = dtype, .gradients = Dtype::kF32};
  return run;
}

// Answers every call with `count` messages of `bytes`, both named by the method: "/COUNT/BYTES". Their memory is as
// large as the blob: one message again and again would come from the cache.
class BareService final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    class Writer final : public grpc::ServerGenericBidiReactor {
     public:
      Writer(int count, size_t num_bytes, absl::Span<const std::byte> memory)
          : left_(count), num_bytes_(num_bytes), memory_(memory) {
        Next(true);
      }

     private:
      void Next(bool ok) {
        if (!ok || left_-- == 0) return Finish(grpc::Status::OK);
        std::byte* bytes = const_cast<std::byte*>(memory_.data()) + static_cast<size_t>(left_) * num_bytes_;
        const grpc::Slice slice(bytes, num_bytes_, grpc::Slice::STATIC_SLICE);
        message_ = grpc::ByteBuffer(&slice, 1);
        StartWrite(&message_);
      }
      void OnWriteDone(bool ok) override { Next(ok); }
      void OnDone() override { delete this; }
      int left_;
      const size_t num_bytes_;
      const absl::Span<const std::byte> memory_;
      grpc::ByteBuffer message_;
    };
    int count = 0, num_bytes = 0;
    EPS_CHECK(std::sscanf(context->method().c_str(), "/%d/%d", &count, &num_bytes) == 2);
    EPS_CHECK(static_cast<size_t>(count) * static_cast<size_t>(num_bytes) <= memory_.size());
    return new Writer(count, static_cast<size_t>(num_bytes), memory_);
  }

 private:
  const absl::Span<const std::byte> memory_ = NewMemory(27 * kMaxDataMessageBytes);
};

// The daemon's process: writes the addresses of a bf16 store, a fp32 store, a bare stream with our settings and one with
// gRPC's, a line each, and serves until it is killed.
void Serve(int out_fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const ModelSpec model = BenchModel();
  std::vector<std::unique_ptr<server::Store>> stores;
  std::vector<std::unique_ptr<server::RpcServer>> servers;
  std::string addresses;
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
    stores.push_back(server::Store::Create(model, BenchRun(model, dtype)).value());
    // Pages that were never written are all one page, which stays in the cache.
    const std::vector<float> ones(model.blob(kWte).num_elems, 1.5f);
    stores.back()->LoadMaster(kWte, Version(0), 0, ones);
    stores.back()->Publish(kWte, Version(0));
    std::vector<std::unique_ptr<grpc::Service>> services;
    services.push_back(server::NewDataService(
        {.incarnation = kIncarnation, .model = &model, .store = stores.back().get(), .last_version = Version(0)}));
    servers.push_back(server::RpcServer::Start({.host = "127.0.0.1", .port = 0}, std::move(services), 0).value());
    addresses += servers.back()->address() + "\n";
  }
  BareService bare_as_ours, bare_default;  // one service belongs to one server
  std::vector<std::unique_ptr<grpc::Server>> bare_servers;
  for (const bool as_ours : {true, false}) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterCallbackGenericService(as_ours ? &bare_as_ours : &bare_default);
    if (as_ours) {
      builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kDataFrameBytes);
      builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kDataWindowBytes);
      builder.AddChannelArgument("grpc.experimental.tcp_read_chunk_size", kDataReadBytes);
    }
    bare_servers.push_back(builder.BuildAndStart());
    addresses += "127.0.0.1:" + std::to_string(port) + "\n";
  }
  EPS_CHECK(write(out_fd, addresses.data(), addresses.size()) == static_cast<ssize_t>(addresses.size()));
  pause();
}

// Reads a call's messages and throws them away; the next is asked for at once.
class BareReader final : private grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  void Run(grpc::GenericStub& stub, const std::string& method) {
    stub.PrepareBidiStreamingCall(&context_, method, grpc::StubOptions(), this);
    StartWritesDone();
    StartRead(&incoming_);
    StartCall();
    MutexLock lock(mu_);
    while (!done_) changed_.Wait(mu_);
  }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    num_bytes_ += static_cast<int64_t>(incoming_.Length());
    grpc::ByteBuffer message;
    message.Swap(&incoming_);
    StartRead(&incoming_);
  }
  void OnDone(const grpc::Status& status) override {
    EPS_CHECK(status.ok());
    MutexLock lock(mu_);
    done_ = true;
    changed_.NotifyAll();
  }
  grpc::ClientContext context_;
  grpc::ByteBuffer incoming_;
  int64_t num_bytes_ = 0;
  Mutex mu_;
  CondVar changed_;
  bool done_ = false;
};

// The same with a completion queue, whose caller polls the socket itself.
int64_t ReadBareFromQueue(grpc::GenericStub& stub, const std::string& method) {
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, method, &queue);
  void* tag = nullptr;
  bool ok = false;
  call->StartCall(nullptr);
  queue.Next(&tag, &ok);
  call->WritesDone(nullptr);
  queue.Next(&tag, &ok);
  int64_t num_bytes = 0;
  while (true) {
    grpc::ByteBuffer message;
    call->Read(&message, nullptr);
    queue.Next(&tag, &ok);
    if (!ok) break;
    num_bytes += static_cast<int64_t>(message.Length());
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  EPS_CHECK(status.ok());
  return num_bytes;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Side {
  std::string name;
  std::vector<double> gbps;  // of each round
};

// Medians of the rounds' own ratios.
double Ratio(const Side& a, const Side& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.gbps.size(); ++i) ratios.push_back(a.gbps[i] / b.gbps[i]);
  return Median(ratios);
}

// The sides: pull, bare by callbacks, bare from a queue, bare with gRPC's defaults.
std::vector<Side> Measure(const std::string& pull_address, const std::string& bare_address,
                          const std::string& default_address, const ModelSpec& model, Dtype dtype, int rounds) {
  const BlobSpec& blob = model.blob(kWte);
  const auto transport = worker::NewGrpcTransport({.channels = {worker::NewDataChannel(pull_address), worker::NewDataChannel(pull_address)},
                                                   .incarnation = kIncarnation,
                                                   .worker_id = WorkerId(1),
                                                   .model = &model,
                                                   .wire_dtype = dtype});
  grpc::GenericStub stub(worker::NewDataChannel(bare_address));
  grpc::ChannelArguments defaults;
  defaults.SetMaxReceiveMessageSize(-1);
  grpc::GenericStub default_stub(
      grpc::CreateCustomChannel(default_address, grpc::InsecureChannelCredentials(), defaults));
  const absl::Span<std::byte> destination = NewMemory(blob.num_elems * SizeOf(dtype));
  const int64_t message_bytes = kChunkHeaderBytes + kChunkElems * SizeOf(dtype);
  const std::string method = "/" + std::to_string(blob.num_chunks()) + "/" + std::to_string(message_bytes);
  const int64_t num_bytes = blob.num_chunks() * message_bytes;
  const auto read_bare = [&](grpc::GenericStub& from) {
    BareReader reader;
    reader.Run(from, method);
    EPS_CHECK(reader.num_bytes() == num_bytes);
  };
  const std::vector<std::function<void()>> calls = {
      [&] { EPS_CHECK(transport->Pull(kWte, Version(0), destination).ok()); },
      [&] { read_bare(stub); },
      [&] { EPS_CHECK(ReadBareFromQueue(stub, method) == num_bytes); },
      [&] { read_bare(default_stub); },
  };
  std::vector<Side> sides = {{"pull"}, {"bare, callbacks"}, {"bare, queue"}, {"bare, defaults"}};
  for (int round = -1; round < rounds; ++round) {  // the first warms up
    for (size_t i = 0; i < calls.size(); ++i) {
      const auto start = Clock::now();
      for (int call = 0; call < kPullsPerRound; ++call) calls[i]();
      const double gbps = static_cast<double>(kPullsPerRound * num_bytes) / 1e9 / SecondsSince(start);
      if (round >= 0) sides[i].gbps.push_back(gbps);
    }
  }
  return sides;
}

int Main(int rounds) {
  SetUpMalloc();  // as the programs do
  int fds[2];
  EPS_CHECK(pipe(fds) == 0);
  const pid_t child = fork();  // before gRPC has threads
  if (child == 0) {
    Serve(fds[1]);
    return 0;
  }
  std::string text;
  while (std::count(text.begin(), text.end(), '\n') < 4) {
    char buffer[256];
    const ssize_t got = read(fds[0], buffer, sizeof(buffer));
    EPS_CHECK(got > 0);
    text.append(buffer, static_cast<size_t>(got));
  }
  std::vector<std::string> addresses;
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    addresses.push_back(text.substr(at, text.find('\n', at) - at));
  }
  const ModelSpec model = BenchModel();
  std::printf("a blob of %lld chunks, as a block of GPT-2 small; GB/s, medians of %d rounds\n",
              static_cast<long long>(model.blob(kWte).num_chunks()), rounds);
  std::printf("%-5s %-10s %-18s %8s %14s\n", "wire", "message", "side", "GB/s", "pull / side");
  nlohmann::ordered_json json = {{"name", "pull"}, {"ratio", 1e9}};
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
    const std::string name = dtype == Dtype::kBf16 ? "bf16" : "fp32";
    const std::vector<Side> sides =
        Measure(addresses[dtype == Dtype::kBf16 ? 0 : 1], addresses[2], addresses[3], model, dtype, rounds);
    for (size_t i = 0; i < sides.size(); ++i) {
      const double ratio = Ratio(sides[0], sides[i]);
      std::printf("%-5s %5lld KiB  %-18s %8.2f %14.3f\n", name.c_str(),
                  static_cast<long long>(kChunkElems * SizeOf(dtype) / 1024), sides[i].name.c_str(),
                  Median(sides[i].gbps), ratio);
      json[name][sides[i].name] = {{"gb_per_second", Median(sides[i].gbps)}, {"ratio", ratio}};
      if (i == 1 || i == 2) json["ratio"] = std::min(json["ratio"].get<double>(), ratio);
    }
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  std::printf("%s\n", json.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) { return eps::Main(argc > 1 ? std::max(1, std::atoi(argv[1])) : 60); }
