#include "trireme/comm/shared_node.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <map>
#include <random>

#include "trireme/base/log.h"
#include "trireme/base/sha256.h"

namespace trireme::comm {

void SharedRegion::create() {
  static std::atomic<int> made{0};  // the name only has to differ from this process's others
  std::snprintf(name_, sizeof name_, "/trireme-%ld-%d", static_cast<long>(getpid()), made.fetch_add(1));
  const int file = shm_open(name_, O_CREAT | O_EXCL | O_RDWR, 0600);
  // Reserved now, so that a full /dev/shm is an answer here and not a SIGBUS later.
  if (file >= 0 && posix_fallocate(file, 0, static_cast<off_t>(bytes_)) == 0) {
    void* at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at != MAP_FAILED) data_ = at;
  }
  if (file >= 0) close(file);
  if (data_ == nullptr && file >= 0) shm_unlink(name_);
  if (data_ == nullptr) name_[0] = '\0';
}

void SharedRegion::attach() {
  if (name_[0] == '\0') return;
  const int file = shm_open(name_, O_RDWR, 0600);
  if (file < 0) return;
  void* at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at != MAP_FAILED) data_ = at;
  close(file);
}

std::shared_ptr<SharedRegion> SharedRegion::make(Assembly& assembly, std::size_t bytes,
                                                 const std::function<void(void*)>& construct) {
  auto region = std::make_shared<SharedRegion>();
  region->bytes_ = bytes;
  if (assembly.is_first()) region->create();
  if (assembly.is_first() && region->data_ != nullptr) construct(region->data_);
  assembly.broadcast(region->name_, sizeof region->name_);
  if (!assembly.is_first()) region->attach();
  const bool all = assembly.all(region->data_ != nullptr);
  if (assembly.is_first() && region->name_[0] != '\0') shm_unlink(region->name_);
  return all ? region : nullptr;
}

SharedRegion::~SharedRegion() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

ProcessCard own_process_card(unsigned long node) {
#if defined(PR_SET_PTRACER) && defined(PR_SET_PTRACER_ANY)
  // Where the Yama module guards processes from each other, say that ours may read each other. Harmless elsewhere.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
#endif
  // A random word at a known address: a process of that number in another container would not have it.
  static const unsigned long probe =
      (static_cast<unsigned long>(std::random_device{}()) << 32) | std::random_device{}();
  return {.node = node, .process = getpid(), .probe_address = reinterpret_cast<unsigned long>(&probe), .probe = probe};
}

unsigned long node_identity() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  char name[256] = {}, processes[64] = {};
  gethostname(name, sizeof name - 1);
  if (readlink("/proc/self/ns/pid", processes, sizeof processes - 1) < 0) processes[0] = '\0';
  struct stat memory {};
  if (stat("/dev/shm", &memory) != 0) memory = {};
  const Sha256Digest digest =
      sha256(fmt::format("{} {} {} {} {}", boot, name, processes, static_cast<unsigned long>(memory.st_dev),
                         static_cast<unsigned long>(memory.st_ino)));
  unsigned long identity = 0;
  for (std::size_t i = 0; i < sizeof identity; ++i) identity = identity << 8 | digest[i];
  return identity;
}

SharedNode::SharedNode(int rank, const std::vector<ProcessCard>& cards, int ranks_per_node,
                       const std::function<std::unique_ptr<Assembly>(const std::vector<int>& ranks)>& assemble) {
  std::map<std::pair<unsigned long, int>, int> numbers;
  std::vector<int> locals_on;  // so far, by node
  for (int r = 0; r < static_cast<int>(cards.size()); ++r) {
    const ProcessCard& card = cards[static_cast<std::size_t>(r)];
    const std::pair place(card.node, ranks_per_node > 0 ? r / ranks_per_node : 0);
    const auto [found, is_new] = numbers.try_emplace(place, static_cast<int>(numbers.size()));
    if (is_new) locals_on.push_back(0);
    node_of_.push_back(found->second);
    local_of_.push_back(locals_on[static_cast<std::size_t>(found->second)]++);
    processes_.push_back(static_cast<pid_t>(card.process));
  }
  my_node_ = node_of_[static_cast<std::size_t>(rank)];
  my_local_ = local_of_[static_cast<std::size_t>(rank)];
  std::vector<int> locals;
  bool permitted = true;
  for (int r = 0; r < static_cast<int>(cards.size()); ++r) {
    if (node_of_[static_cast<std::size_t>(r)] != my_node_) continue;
    locals.push_back(r);
    const ProcessCard& card = cards[static_cast<std::size_t>(r)];
    if (r == rank) continue;
    permitted &= RemoteMemory::permitted(static_cast<pid_t>(card.process),
                                         reinterpret_cast<const void*>(card.probe_address), card.probe);
  }
  const auto assembly = assemble(locals);
  may_touch_ = assembly->all(permitted);
  if (!may_touch_ && locals.size() > 1) {
    log_debug(
        "the system does not let the ranks of this node read each other's memory: 'direct' is for small calls only");
  }
  event_counts_ = SharedRegion::make(*assembly, sizeof(EventCount) * locals.size(), [&](void* at) {
    for (std::size_t i = 0; i < locals.size(); ++i) new (static_cast<EventCount*>(at) + i) EventCount;
  });
}

bool SharedNode::can_share(const Members& members) const {
  for (const int r : members.ranks) {
    if (node_of_[static_cast<std::size_t>(r)] != my_node_) return false;
  }
  return event_counts_ != nullptr;
}

std::unique_ptr<Board> SharedNode::make_board(Assembly& assembly, const Members& members) {
  const int ranks = static_cast<int>(members.ranks.size());
  const std::size_t slot = slot_bytes(/*processes=*/true, ranks);
  auto region = SharedRegion::make(assembly, BoardMemory::bytes(ranks, slot),
                                   [&](void* at) { BoardMemory::construct(at, ranks); });
  if (!region) return nullptr;
  auto& memory = *reinterpret_cast<BoardMemory*>(region->data());
  std::vector<EventCount*> event_counts;
  std::vector<pid_t> processes;
  for (const int r : members.ranks) {
    event_counts.push_back(event_count_of(local_of_[static_cast<std::size_t>(r)]));
    processes.push_back(processes_[static_cast<std::size_t>(r)]);
  }
  using Regions = std::pair<std::shared_ptr<SharedRegion>, std::shared_ptr<SharedRegion>>;
  return std::make_unique<Board>(Board::Parts{.memory = memory,
                                              .me = members.me,
                                              .ranks = ranks,
                                              .slot_bytes = slot,
                                              .event_counts = std::move(event_counts),
                                              .keep_alive = std::make_shared<Regions>(std::move(region), event_counts_),
                                              .remote = RemoteMemory(std::move(processes)),
                                              .pointers = may_touch_});
}

}  // namespace trireme::comm
