// Defaults of ThreadSanitizer for this tree's programs. TSAN_OPTIONS in the environment still wins.

extern "C" {

const char* __tsan_default_options();
const char* __tsan_default_suppressions();

// Debian's gRPC, Abseil and oneTBB are not instrumented: what they do to memory is not looked at.
const char* __tsan_default_options() { return "ignore_noninstrumented_modules=1:second_deadlock_stack=1"; }

// gRPC's headers read back a callback's tag and the operations of a call (CallbackWithSuccessTag, CallOpSet) just before
// tsan_grpc.cc can say that it is their turn.
// A reactor's end (CallOnDone) and what gRPC is given to keep (TokenBearer) come by counts that cannot be seen. What a
// reactor does in its other callbacks is looked at.
//
// oneTBB's own task objects: what orders them is inside libtbb.so and cannot be seen. `race_top` looks at the innermost
// frame only, and the functions named never call the body of a task, so that no race in a body is hidden. Just as unseen
// is that the bodies run after what precedes the loop and before what follows it: a wrapper of tbb::parallel_for says so
// with __tsan_release and __tsan_acquire (release once the body object is built, acquire first thing in the body).
const char* __tsan_default_suppressions() {
  return "race:grpc::internal::CallOpSet\n"
         "race_top:grpc::internal::CallbackWithSuccessTag\n"
         "race:::CallOnDone\n"
         "race:~TokenBearer\n"
         "race_top:oneapi/tbb/\n"
         "race:fold_tree\n"
         "race:check_being_stolen\n"
         "race:offer_work\n"
         "race:small_object_allocator\n"
         "race:task_group_context\n";
}
}
