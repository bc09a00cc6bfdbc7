// gpu_worker: attaches to a daemon with a device and a memory cap, and relays.

#include "gpu_worker/worker_main.h"

int main(int argc, char** argv) { return eps::worker::WorkerMain(argc, argv); }
