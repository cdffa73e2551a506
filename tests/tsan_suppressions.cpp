// The thread sanitizer does not see how libstdc++, which is not instrumented, counts the owners of an exception: where
// the last of several threads lets go of one, its destructor looks like a race with those that read the message before.
extern "C" const char* __tsan_default_suppressions() {
  return "race:std::__exception_ptr::exception_ptr::_M_release\n";
}
