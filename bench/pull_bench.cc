// Pull throughput over loopback: a worker's transport from a daemon's data service, against a bare gRPC stream of
// messages of the same size, sent as they lie in memory and received to be thrown away. In the same two processes, in
// turn, each round beginning with another; a ratio is the median of the rounds' own, so that what else the machine does
// meanwhile counts less. As in training, each pull of a round is of another blob, and the blobs together are more than a
// processor's cache holds: nothing is sent that was sent just before. Bare streams send as much, in the same way.
//
// The bare stream is read in four ways: with gRPC's defaults and with the settings of our data plane, by callbacks and
// from a queue of its own. `ratio` is that to the fastest of them, in bf16 or fp32.
//
//   pull_bench [rounds]     60 by default

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/support.h"
#include "common/base/ids.h"
#include "common/base/malloc_settings.h"
#include "common/base/median.h"
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

namespace eps::bench {
namespace {

constexpr uint64_t kIncarnation = 1;
using Clock = std::chrono::steady_clock;

constexpr int kNumBlobs = 4;  // pulled in each round: 57 MB in bf16

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

ModelSpec BenchModel() {
  // Blocks of GPT-2 small: 14 MB each in bf16, 28 MB in fp32, all but the last chunk whole. The rest of the model is small.
  return BuildModel({.num_layers = kNumBlobs, .d_model = 768, .num_heads = 12, .context = 8, .vocab = 8}).value();
}

BlobId Block(const ModelSpec& model, int i) { return model.layers[static_cast<size_t>(i + 1)].blobs.front().blob; }

RunConfig BenchRun(const ModelSpec& model, Dtype dtype) {
  RunConfig run;
  run.model = model.config;
  run.optimizer.rule = OptimizerRule::kSgd;
  run.precision = {.wire = dtype, .gradients = Dtype::kF32};
  return run;
}

// What a bare call is answered with: the bytes [begin, end) of the service's memory, `message_bytes` at a time, the last
// message with what is left. Sent as the method's name: "/BEGIN/END/MESSAGE_BYTES".
struct BareCall {
  size_t begin = 0;
  size_t end = 0;
  size_t message_bytes = 0;

  std::string Method() const {
    return "/" + std::to_string(begin) + "/" + std::to_string(end) + "/" + std::to_string(message_bytes);
  }
  static BareCall FromMethod(const std::string& method) {
    BareCall call;
    EPS_CHECK(std::sscanf(method.c_str(), "/%zu/%zu/%zu", &call.begin, &call.end, &call.message_bytes) == 3);
    return call;
  }
};

class BareService final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    class Writer final : public grpc::ServerGenericBidiReactor {
     public:
      Writer(BareCall call, absl::Span<const std::byte> memory) : call_(call), memory_(memory) { Next(true); }

     private:
      void Next(bool ok) {
        if (!ok || call_.begin == call_.end) return Finish(grpc::Status::OK);
        const size_t num_bytes = std::min(call_.message_bytes, call_.end - call_.begin);
        std::byte* bytes = const_cast<std::byte*>(memory_.data()) + call_.begin;
        const grpc::Slice slice(bytes, num_bytes, grpc::Slice::STATIC_SLICE);
        message_ = grpc::ByteBuffer(&slice, 1);
        call_.begin += num_bytes;
        StartWrite(&message_);
      }
      void OnWriteDone(bool ok) override { Next(ok); }
      void OnDone() override { delete this; }
      BareCall call_;  // of what is left
      const absl::Span<const std::byte> memory_;
      grpc::ByteBuffer message_;
    };
    const BareCall call = BareCall::FromMethod(context->method());
    EPS_CHECK(call.begin < call.end && call.end <= memory_.size() && call.message_bytes > 0);
    return new Writer(call, memory_);
  }

 private:
  const absl::Span<const std::byte> memory_ = NewMemory(kNumBlobs * 28 * kMaxDataMessageBytes);
};

// The daemon's process: writes the addresses of a bf16 store, a fp32 store, a bare stream with our settings and one with
// gRPC's, a line each, and serves until it is killed.
void Serve(int out_fd) {
  const ModelSpec model = BenchModel();
  std::vector<std::unique_ptr<server::Store>> stores;
  std::vector<std::unique_ptr<server::RpcServer>> servers;
  std::string addresses;
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
    stores.push_back(server::Store::Create(model, BenchRun(model, dtype)).value());
    // Pages that were never written are all one page, which stays in the cache.
    for (int i = 0; i < kNumBlobs; ++i) {
      const BlobId blob = Block(model, i);
      EPS_CHECK(
          stores.back()->LoadMaster(blob, Version(0), 0, std::vector<float>(model.blob(blob).num_elems, 1.5f)).ok());
      stores.back()->Publish(blob, Version(0));
    }
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
      for (const ChannelArgument& each : kDataChannelArguments) builder.AddChannelArgument(each.name, each.value);
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

// The first side is the pull.
std::vector<Side> Measure(const std::string& pull_address, const std::string& bare_address,
                          const std::string& default_address, const ModelSpec& model, Dtype dtype, int rounds) {
  const BlobSpec& blob = model.blob(Block(model, 0));
  const auto transport = worker::NewGrpcTransport(
      {.channels = {worker::NewDataChannel(pull_address), worker::NewDataChannel(pull_address)},
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
  const size_t message_bytes = static_cast<size_t>(kChunkHeaderBytes + kChunkElems * SizeOf(dtype));
  const size_t num_bytes = static_cast<size_t>(blob.num_chunks() * kChunkHeaderBytes + blob.num_elems * SizeOf(dtype));
  const auto bare_call = [&](int i) {
    const size_t begin = static_cast<size_t>(i) * num_bytes;
    return BareCall{.begin = begin, .end = begin + num_bytes, .message_bytes = message_bytes}.Method();
  };
  const auto read_bare = [&](grpc::GenericStub& from, int i) {
    BareReader reader;
    reader.Run(from, bare_call(i));
    EPS_CHECK(reader.num_bytes() == static_cast<int64_t>(num_bytes));
  };
  const auto queue_bare = [&](grpc::GenericStub& from, int i) {
    EPS_CHECK(ReadBareFromQueue(from, bare_call(i)) == static_cast<int64_t>(num_bytes));
  };
  const std::vector<std::function<void(int)>> calls = {
      [&](int i) { EPS_CHECK(transport->Pull(Block(model, i), Version(0), blob.all_chunks(), destination).ok()); },
      [&](int i) { read_bare(default_stub, i); },
      [&](int i) { queue_bare(default_stub, i); },
      [&](int i) { read_bare(stub, i); },
      [&](int i) { queue_bare(stub, i); },
  };
  std::vector<Side> sides = {
      {"pull"}, {"bare, callbacks"}, {"bare, queue"}, {"bare, our settings, callbacks"}, {"bare, our settings, queue"}};
  for (int round = -1; round < rounds; ++round) {  // the first warms up
    for (size_t turn = 0; turn < calls.size(); ++turn) {
      const size_t side = (turn + static_cast<size_t>(round + 1)) % calls.size();
      const auto start = Clock::now();
      for (int i = 0; i < kNumBlobs; ++i) calls[side](i);
      const double gbps = static_cast<double>(kNumBlobs * num_bytes) / 1e9 / SecondsSince(start);
      if (round >= 0) sides[side].gbps.push_back(gbps);
    }
  }
  return sides;
}

int Main(int rounds) {
  SetUpMalloc();                          // as the programs do
  const Peer peer = StartPeer(4, Serve);  // before gRPC has threads
  const ModelSpec model = BenchModel();
  std::printf("blocks of GPT-2 small, %lld chunks each; GB/s, medians of %d rounds\n",
              static_cast<long long>(model.blob(Block(model, 0)).num_chunks()), rounds);
  std::printf("%-5s %-10s %-30s %8s %14s\n", "wire", "message", "side", "GB/s", "pull / side");
  nlohmann::ordered_json json = {{"name", "pull"}, {"ratio", 1e9}};
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
    const std::string name = dtype == Dtype::kBf16 ? "bf16" : "fp32";
    const std::vector<Side> sides =
        Measure(peer.lines[dtype == Dtype::kBf16 ? 0 : 1], peer.lines[2], peer.lines[3], model, dtype, rounds);
    for (size_t i = 0; i < sides.size(); ++i) {
      const double ratio = Ratio(sides[0], sides[i]);
      std::printf("%-5s %5lld KiB  %-30s %8.2f %14.3f\n", name.c_str(),
                  static_cast<long long>(kChunkElems * SizeOf(dtype) / 1024), sides[i].name.c_str(),
                  Median(sides[i].gbps), ratio);
      json[name][sides[i].name] = {{"gb_per_second", Median(sides[i].gbps)}, {"ratio", ratio}};
      if (i > 0) json["ratio"] = std::min(json["ratio"].get<double>(), ratio);
    }
  }
  EndPeer(peer);
  std::printf("%s\n", json.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace eps::bench

int main(int argc, char** argv) { return eps::bench::Main(argc > 1 ? std::max(1, std::atoi(argv[1])) : 60); }
