#include "trireme/comm/remote_memory.h"

#include <sys/uio.h>

#include <cerrno>
#include <cstring>

#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

[[noreturn]] void raise(const char* what, int rank, pid_t process, std::size_t bytes) {
  const int error = errno;
  throw CommError(fmt::format("{} {} bytes of the memory of rank {} (process {}): {}", what, bytes, rank, process,
                              std::strerror(error)),
                  error == ESRCH ? "that process has ended; look at its log"
                                 : "use another algorithm than 'direct' if the system forbids this");
}

}  // namespace

void RemoteMemory::read(int rank, void* local, const void* remote, std::size_t bytes) const {
  const pid_t process = processes_[static_cast<std::size_t>(rank)];
  std::size_t done = 0;
  while (done < bytes) {
    iovec mine{static_cast<std::byte*>(local) + done, bytes - done};
    iovec theirs{const_cast<std::byte*>(static_cast<const std::byte*>(remote)) + done, bytes - done};
    const ssize_t n = process_vm_readv(process, &mine, 1, &theirs, 1, 0);
    if (n <= 0) raise("could not read", rank, process, bytes);
    done += static_cast<std::size_t>(n);
  }
}

void RemoteMemory::write(int rank, const void* local, void* remote, std::size_t bytes) const {
  const pid_t process = processes_[static_cast<std::size_t>(rank)];
  std::size_t done = 0;
  while (done < bytes) {
    iovec mine{const_cast<std::byte*>(static_cast<const std::byte*>(local)) + done, bytes - done};
    iovec theirs{static_cast<std::byte*>(remote) + done, bytes - done};
    const ssize_t n = process_vm_writev(process, &mine, 1, &theirs, 1, 0);
    if (n <= 0) raise("could not write", rank, process, bytes);
    done += static_cast<std::size_t>(n);
  }
}

bool RemoteMemory::permitted(pid_t process, const void* probe, unsigned long expected) {
  unsigned long word = 0;
  iovec mine{&word, sizeof word}, theirs{const_cast<void*>(probe), sizeof word};
  return process_vm_readv(process, &mine, 1, &theirs, 1, 0) == static_cast<ssize_t>(sizeof word) && word == expected;
}

}  // namespace trireme::comm
