#include "trireme/pipeline/portals.h"

#include <ATen/ops/empty.h>

#include "trireme/base/error.h"
#include "trireme/device/tensor_buffer.h"

namespace trireme::pipeline {

Portals::Portals(const schedule::Schedule& table, comm::Group& pipeline, std::span<const Skip> skips, Passes& passes)
    : table_(table), pipeline_(pipeline), skips_(skips), passes_(passes) {}

int Portals::tag_of(std::size_t skip, int micro, bool forward) const {
  // Of each message its own: chunks may meet micros in different orders. Above those of neighbouring chunks.
  constexpr int kFirst = 1 << 22;
  return kFirst + (static_cast<int>(skip) * table_.micros + micro) * 2 + (forward ? 0 : 1);
}

template <typename Body>
void Portals::for_each(int chunk, int micro, bool comes_in, bool forward, Body&& body) {
  for (std::size_t i = 0; i < skips_.size(); ++i) {
    const Skip& skip = skips_[i];
    const bool at_end = comes_in == forward;  // this pass is at the taking end of the skip
    if ((at_end ? skip.to : skip.from) != chunk) continue;
    const int other = table_.rank_of(at_end ? skip.from : skip.to, micro);
    if (other != pipeline_.rank()) body(i, skip, other);
  }
}

void Portals::post(int chunk, int micro, bool forward) {
  for_each(chunk, micro, /*comes_in=*/true, forward, [&](std::size_t i, const Skip& skip, int other) {
    const auto [found, is_new] = receives_.try_emplace({i, micro, forward});
    if (!is_new) return;
    const BoundaryTensor boundary = skip.boundary(passes_.micro(micro));
    found->second.tensor = at::empty(boundary.sizes, boundary.options());
    found->second.work = pipeline_.recv(device::to_buffer(found->second.tensor), other, tag_of(i, micro, forward));
  });
}

void Portals::before(int chunk, int micro, bool forward) {
  post(chunk, micro, forward);
  for_each(chunk, micro, /*comes_in=*/true, forward, [&](std::size_t i, const Skip& skip, int) {
    auto received = receives_.extract({i, micro, forward});
    received.mapped().work.wait();
    nn::Skips& skips = passes_.skips(micro);
    forward ? skips.give(skip.name, std::move(received.mapped().tensor))
            : skips.give_back(skip.name, std::move(received.mapped().tensor));
  });
}

void Portals::after(int chunk, int micro, bool forward) {
  for_each(chunk, micro, /*comes_in=*/false, forward, [&](std::size_t i, const Skip& skip, int other) {
    const nn::Skips& skips = passes_.skips(micro);
    const at::Tensor tensor = (forward ? skips.take(skip.name) : skips.take_back(skip.name)).contiguous();
    if (forward) {
      const BoundaryTensor expected = skip.boundary(passes_.micro(micro));
      TRIREME_CHECK(tensor.sizes() == at::IntArrayRef(expected.sizes) && tensor.scalar_type() == expected.type,
                    "skip {} has another shape or type than expected", skip.name);
    }
    std::erase_if(sends_, [](SkipTransfer& sent) { return sent.work.test(); });
    SkipTransfer& sent = sends_.emplace_back();
    sent.tensor = tensor;
    sent.work = pipeline_.send(device::to_const_buffer(sent.tensor), other, tag_of(i, micro, forward));
  });
  if (!forward) passes_.release_skips(micro);
}

void Portals::end() {
  TRIREME_CHECK(receives_.empty(), "{} skips were posted and never taken", receives_.size());
  for (SkipTransfer& sent : sends_) sent.work.wait();
  sends_.clear();
}

}  // namespace trireme::pipeline
