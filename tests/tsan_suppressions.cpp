// What the thread sanitizer is told about libraries that are not instrumented, by name.
//
// libstdc++: how it counts the owners of an exception is not seen: where the last of several threads lets go of one,
// its destructor looks like a race with those that read the message before. UCX: its locks are its own, so what its
// functions do through libc (copies, descriptors) looks unguarded. Calls that come from its libraries are ignored, and
// what their destructors unlock. Our plugin, and all that UCX calls back, is looked at as everything else.
extern "C" const char* __tsan_default_suppressions() {
  return "race:std::__exception_ptr::exception_ptr::_M_release\n"
         "called_from_lib:libucp.so\n"
         "called_from_lib:libuct.so\n"
         "called_from_lib:libucs.so\n"
         "called_from_lib:libucm.so\n"
         "mutex:_dl_call_fini\n";
}
