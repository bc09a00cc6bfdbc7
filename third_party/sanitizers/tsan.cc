// Defaults of ThreadSanitizer for this tree's programs. TSAN_OPTIONS in the environment still wins.

extern "C" {

const char* __tsan_default_options();
const char* __tsan_default_suppressions();

// Debian's gRPC, Abseil and oneTBB are not instrumented: what they do to memory is not looked at.
const char* __tsan_default_options() { return "ignore_noninstrumented_modules=1:second_deadlock_stack=1"; }

// gRPC's headers set up the operations of a call (CallOpSet) and bind a reactor to it (InternalBind*), hand them to
// libgrpc.so, and read or destroy them when it gives them back: what orders the two is inside. The same holds for what it
// is given to keep (TokenBearer). What a reactor does in its callbacks is called from elsewhere, and is looked at.
//
// oneTBB's own task objects: what orders them is inside libtbb.so and cannot be seen. `race_top` looks at the innermost
// frame only, and the functions named never call the body of a task, so that no race in a body is hidden. Just as unseen
// is that the bodies run after what precedes the loop and before what follows it: a wrapper of tbb::parallel_for says so
// with __tsan_release and __tsan_acquire (release once the body object is built, acquire first thing in the body).
const char* __tsan_default_suppressions() {
  return "race:grpc::internal::CallOpSet\n"
         "race:InternalBind\n"
         "race:~TokenBearer\n"
         "race_top:oneapi/tbb/\n"
         "race:fold_tree\n"
         "race:check_being_stolen\n"
         "race:offer_work\n"
         "race:small_object_allocator\n"
         "race:task_group_context\n";
}
}
