#include "trireme/observe/stop_file.h"

#include <fcntl.h>
#include <unistd.h>

namespace trireme::observe {
namespace {

std::filesystem::path stop_file_of(const std::filesystem::path& run) { return run / "stop"; }

}  // namespace

void ask_to_stop(const std::filesystem::path& run) noexcept {
  const int file = ::open(stop_file_of(run).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (file >= 0) ::close(file);
}

bool asked_to_stop(const std::filesystem::path& run) noexcept { return ::access(stop_file_of(run).c_str(), F_OK) == 0; }

void take_back_stop(const std::filesystem::path& run) noexcept { ::unlink(stop_file_of(run).c_str()); }

}  // namespace trireme::observe
