// What a group does for GPUs of ranks that are processes: following calls there, registered buffers, captured calls.
#include <algorithm>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/comm/group.h"
#include "trireme/comm/rank.h"

namespace trireme::comm {

bool Group::has_processes() const { return owner_.transport().has_processes(); }
ControlPlane& Group::control() const { return owner_.control(); }
void Group::check_peers() const { owner_.check_peers(*this); }

int Group::local_rank() const {
  const std::vector<int> nodes = owner_.transport().node_of();
  const auto me = nodes.begin() + owner_.rank();
  return static_cast<int>(std::count(nodes.begin(), me, *me));
}

void Group::use_gpu(std::unique_ptr<GpuTransport> gpu) {
  const auto lock = owner_.engine_.lock();
  const std::lock_guard against_questions(owner_.groups_mutex_);
  TRIREME_CHECK(owner_.gpu_ == nullptr, "rank {} has a GPU transport already", owner_.rank());
  owner_.gpu_ = std::move(gpu);
}

std::unique_lock<std::mutex> Group::engine_lock() const { return owner_.engine_.lock(); }

GpuTransport* Group::gpu() const { return owner_.gpu_.get(); }

CallFacts facts_of(const Operation& operation) {
  return {.key = operation.key_,
          .sequence = operation.sequence_,
          .peer = operation.peer_,
          .allowed_ns = operation.deadline_ns_ - operation.started_ns_};
}

void Group::follow(const Operation& call, std::unique_ptr<Operation> on_gpu) {
  on_gpu->group_ = this;
  on_gpu->key_ = call.key_;
  on_gpu->sequence_ = call.sequence_;
  on_gpu->peer_ = call.peer_;
  on_gpu->record_ = call.record_;
  on_gpu->started_ns_ = call.started_ns_;
  on_gpu->deadline_ns_ = call.deadline_ns_;
  on_gpu->follows_ = true;
  owner_.engine_.adopt(std::move(on_gpu));
}

void Group::follow_replayed(const CallFacts& facts, std::unique_ptr<Operation> on_gpu) {
  on_gpu->group_ = this;
  on_gpu->key_ = facts.key;
  on_gpu->sequence_ = facts.sequence;
  on_gpu->peer_ = facts.peer;
  on_gpu->started_ns_ = now_ns();
  on_gpu->deadline_ns_ = on_gpu->started_ns_ + facts.allowed_ns;
  on_gpu->record_ = owner_.recorder_.begin(record_group_, facts.key, facts.sequence,
                                           facts.peer < 0 ? -1 : world_rank(facts.peer), on_gpu->started_ns_);
  owner_.recorder_.given(on_gpu->record_);
  owner_.engine_.adopt(std::move(on_gpu));
}

RegisteredBuffer Group::register_buffer(Buffer memory) {
  if (memory.device.kind != DeviceKind::kCuda || gpu() == nullptr) return {};
  check_device(memory.device, "register_buffer");
  const auto lock = owner_.engine_.lock();
  return {*this, gpu()->register_buffer(members_, memory.data, memory.bytes())};
}

RegisteredBuffer::RegisteredBuffer(RegisteredBuffer&& other) noexcept
    : group_(std::exchange(other.group_, nullptr)), registered_(other.registered_) {}

RegisteredBuffer& RegisteredBuffer::operator=(RegisteredBuffer&& other) noexcept {
  std::swap(group_, other.group_);
  std::swap(registered_, other.registered_);
  return *this;
}

RegisteredBuffer::~RegisteredBuffer() {
  if (group_ == nullptr) return;
  const auto lock = group_->engine_lock();
  group_->gpu()->deregister_buffer(registered_);
}

CapturedCollectives::CapturedCollectives(Group& any, const std::function<void()>& body) : group_(any) {
  TRIREME_CHECK(any.gpu() != nullptr, "group '{}' has no GPU transport whose calls could be captured", any.name());
  const auto end = [&] {
    const auto lock = group_.engine_lock();
    capture_ = group_.gpu()->end_capture();
  };
  {
    const auto lock = group_.engine_lock();
    group_.gpu()->begin_capture();
  }
  try {
    body();
  } catch (...) {
    end();
    const auto lock = group_.engine_lock();
    group_.gpu()->drop_capture(capture_);
    throw;
  }
  end();
}

CapturedCollectives::~CapturedCollectives() {
  const auto lock = group_.engine_lock();
  group_.gpu()->drop_capture(capture_);
}

void CapturedCollectives::replay(const std::function<void()>& launch) {
  group_.check_usable();
  const auto lock = group_.engine_lock();
  group_.gpu()->replay(
      capture_, [](void* context) { (*static_cast<const std::function<void()>*>(context))(); },
      const_cast<std::function<void()>*>(&launch));
}

}  // namespace trireme::comm
