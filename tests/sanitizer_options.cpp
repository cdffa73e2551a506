// What sanitizers are told in tests that run libraries which are not instrumented, LibTorch and cpp-httplib: LibTorch
// keeps what it allocates until the process ends, and the locks inside of both are not seen.
extern "C" {
const char* __asan_default_options() { return "detect_leaks=0"; }
const char* __tsan_default_options() { return "ignore_noninstrumented_modules=1"; }
}
