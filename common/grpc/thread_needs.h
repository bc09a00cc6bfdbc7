#ifndef EPS_COMMON_GRPC_THREAD_NEEDS_H_
#define EPS_COMMON_GRPC_THREAD_NEEDS_H_

namespace eps {

// How many threads a process starts at most beside its main one, with those that gRPC starts by itself: what
// CheckThreadRoom is asked for before gRPC is used.
int ClientThreads();  // a command that talks to a daemon
int DaemonThreads(int optimizer_threads, int workers);
int WorkerThreads(int compute_threads);
// Of a daemon, for each worker: that copy its gradients out of shared memory. A thread copies 4 to 8 GB/s where the link to
// a GPU brings up to 50: a quarter of the optimizer's, which has the others meanwhile; 1 to 8.
int CopierThreads(int optimizer_threads);
// Of `eps train` and all that it starts, with their main threads; at most 1024, which are tried in a moment.
int RunThreads(int workers, int compute_threads);

}  // namespace eps

#endif  // EPS_COMMON_GRPC_THREAD_NEEDS_H_
