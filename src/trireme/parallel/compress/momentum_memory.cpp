#include "trireme/parallel/compress/momentum_memory.h"

#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>

namespace trireme::parallel {

void MomentumMemory::take_dense(Bucket& bucket) {
  at::Tensor& next = momentum_.next(bucket);
  if (m_ == 0) return;
  at::mul_out(next, momentum_.kept(bucket), at::Scalar(m_));
  next.add_(bucket.sending);
  bucket.sending.copy_(next);
}

void MomentumMemory::take_rest(Bucket& bucket, std::span<Term> terms) {
  if (m_ == 0) return;
  std::vector<at::Tensor> gradients;
  for (const Term& term : terms) gradients.push_back(term.data.clone());
  take_dense(bucket);
  for (std::size_t i = 0; i < terms.size(); ++i) terms[i].data.copy_(gradients[i]);
}

at::Tensor MomentumMemory::accumulate(const Term& term) {
  at::Tensor u = momentum_of(term), v = term.part_of(left_.next(*term.bucket));
  at::mul_out(u, term.part_of(momentum_.kept(*term.bucket)), at::Scalar(m_));
  u.add_(term.data);
  at::add_out(v, term.part_of(left_.kept(*term.bucket)), u);
  return v;
}

void MomentumMemory::keep(bool dense) {
  if (m_ > 0) momentum_.keep();
  if (!dense) left_.keep();
}

void MomentumMemory::add_state(nn::State& state) {
  left_.add_state(state, "reduce/residual");
  if (m_ > 0) momentum_.add_state(state, "reduce/momentum");
}

}  // namespace trireme::parallel
