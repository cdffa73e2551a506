// PowerSGD (Vogels, Karimireddy, Jaggi 2019): one power iteration a step. With M_w this copy's gradient and residual,
//   P = orthogonalise(sum of M_w Q),  Q_w = M_w^T P,  sum = P (sum of Q_w)^T,  residual = M_w - P Q_w^T
// The residual is by the copy's own Q_w, as in the paper: with the mean of them it would drift like a random walk.
// `alternate` exchanges one factor a step: M_w Q with Q orthogonal, then M_w^T P with P orthogonal.
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "trireme/layout/reduction.h"
#include "trireme/nn/state.h"
#include "trireme/parallel/compress/compressed_reducer.h"
#include "trireme/parallel/compress/power_iteration.h"

namespace trireme::parallel {
namespace {

/// What of each matrix goes into one exchange.
class FactorBuffer {
 public:
  FactorBuffer(std::int64_t elements, const at::TensorOptions& options) : flat_(at::empty({elements}, options)) {}
  at::Tensor take(std::int64_t rows, std::int64_t columns) {
    at::Tensor part = flat_.narrow(0, at_, rows * columns).view({rows, columns});
    at_ += rows * columns;
    return part;
  }
  at::Tensor& all() { return flat_; }

 private:
  at::Tensor flat_;
  std::int64_t at_ = 0;
};

class PowerSgd final : public CompressedReducer {
 public:
  explicit PowerSgd(const ReducerParts& parts) : CompressedReducer(parts), residuals_(make_residuals()) {
    for (const Term& term : terms()) {
      const std::int64_t rank = useful_rank(config().rank, term.rows, term.columns);
      ranks_.push_back(rank);
      const at::ScalarType type = term.bucket->gradient_type == at::kDouble ? at::kDouble : at::kFloat;
      if (rank == 0) {
        right_.emplace_back(), left_.emplace_back();
        continue;
      }
      right_.push_back(random_factor(options().seed, term.param->name, shard(*term.param), 0, term.columns, rank, type)
                           .to(options().device));
      left_.push_back(config().alternate ? at::zeros({term.rows, rank}, options().on_device(type)) : at::Tensor());
    }
    next_right_.resize(right_.size());
    next_left_.resize(left_.size());
  }

  void step_taken(const TakenStep&) override {
    if (was_dense()) return;
    residuals_.keep();
    for (std::size_t i = 0; i < right_.size(); ++i) {
      if (next_right_[i].defined()) right_[i].copy_(next_right_[i]);
      if (next_left_[i].defined()) left_[i].copy_(next_left_[i]);
    }
  }
  void add_state(nn::State& state) override {
    residuals_.add_state(state, "reduce/residual");
    for (std::size_t i = 0; i < right_.size(); ++i) {
      if (config().warm_start || config().alternate) add_factor(state, "reduce/right", i, right_[i]);
      add_factor(state, "reduce/left", i, left_[i]);
    }
  }
  std::int64_t bytes() const override {
    std::int64_t bytes = residuals_.bytes();
    for (const auto* factors : {&right_, &left_}) {
      for (const at::Tensor& factor : *factors)
        bytes += factor.defined() ? 2 * static_cast<std::int64_t>(factor.nbytes()) : 0;
    }
    return bytes;
  }

 protected:
  std::string method() const override {
    return fmt::format("+ residual -> rank {}, {} -> decompress", config().rank,
                       config().alternate ? "all-reduce of P or Q in turn" : "all-reduce of P, then of Q");
  }
  double term_bytes(const Term& term) const override {
    const std::int64_t rank = useful_rank(config().rank, term.rows, term.columns);
    double elements = static_cast<double>(rank * (term.rows + term.columns)) / (config().alternate ? 2 : 1);
    if (rank == 0) elements = static_cast<double>(term.elements());
    return 2.0 * (term.copies - 1) / term.copies * elements *
           static_cast<double>(c10::elementSize(term.bucket->gradient_type));
  }
  void reduce(std::span<Term> terms) override {
    if (terms.empty()) return;
    for (std::size_t i = 0; i < terms.size(); ++i) {
      if (rank_of(terms[i]) > 0) compensate(terms[i]);
    }
    config().alternate ? reduce_alternating(terms) : reduce_both(terms);
  }

 private:
  std::int64_t rank_of(const Term& term) const { return ranks_[term.number]; }
  static at::Tensor matrix(const Term& term, const at::Tensor& flat) { return flat.view({term.rows, term.columns}); }
  at::Tensor next(const Term& term) { return matrix(term, term.part_of(residuals_.next(*term.bucket))); }
  /// M_w stands where the sum will.
  void compensate(Term& term) { term.data.add_(term.part_of(residuals_.kept(*term.bucket))); }

  /// Random, with as many rows as asked for.
  at::Tensor factor_to_start(const Term& term, std::int64_t rows) const {
    return random_factor(options().seed, term.param->name, shard(*term.param), step(), rows, rank_of(term),
                         right_[term.number].scalar_type())
        .to(options().device);
  }
  /// Those that the next step begins with: columns of zeros start anew.
  void keep_factors(std::span<const Term> terms, const std::vector<at::Tensor>& sent, std::vector<at::Tensor>& next) {
    const std::vector<bool> renewed = have_zero_columns(defined(sent));
    std::size_t place = 0;
    for (std::size_t i = 0; i < sent.size(); ++i) {
      if (!sent[i].defined()) continue;
      at::Tensor& factor = next[terms[i].number];
      factor = sent[i].clone();
      if (renewed[place++]) renew_zero_columns(factor, factor_to_start(terms[i], sent[i].size(0)));
    }
  }
  static std::vector<at::Tensor> defined(const std::vector<at::Tensor>& factors) {
    std::vector<at::Tensor> some;
    for (const at::Tensor& factor : factors) {
      if (factor.defined()) some.push_back(factor);
    }
    return some;
  }
  std::int64_t elements_of(std::span<const Term> terms, bool left, bool with_dense) const {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < terms.size(); ++i) {
      if (rank_of(terms[i]) > 0) sum += rank_of(terms[i]) * (left ? terms[i].rows : terms[i].columns);
      if (rank_of(terms[i]) == 0 && with_dense) sum += terms[i].elements();
    }
    return sum;
  }
  /// Matrices that two factors would not make smaller travel whole beside the first ones.
  template <typename Body>
  void with_dense(std::span<Term> terms, FactorBuffer& buffer, Body&& body) {
    for (std::size_t i = 0; i < terms.size(); ++i) {
      if (rank_of(terms[i]) == 0) body(buffer.take(terms[i].elements(), 1).view({-1}), terms[i].data);
    }
  }

  void reduce_both(std::span<Term> terms) {
    FactorBuffer first(elements_of(terms, true, true), terms.front().data.options());
    std::vector<at::Tensor> lefts(terms.size()), rights(terms.size());
    for (std::size_t i = 0; i < terms.size(); ++i) {
      if (rank_of(terms[i]) == 0) continue;
      lefts[i] = first.take(terms[i].rows, rank_of(terms[i]));
      const at::Tensor start =
          config().warm_start ? right_[terms[i].number] : factor_to_start(terms[i], terms[i].columns);
      at::mm_out(lefts[i], matrix(terms[i], terms[i].data), start);
    }
    FactorBuffer again = first;  // the same memory, from where the dense ones begin
    with_dense(terms, first, [](at::Tensor in, const at::Tensor& data) { in.copy_(data); });
    exchange().sum(first.all());
    with_dense(terms, again, [](const at::Tensor& in, at::Tensor data) { data.copy_(in); });
    FactorBuffer second(elements_of(terms, false, false), terms.front().data.options());
    std::vector<at::Tensor> bases = defined(lefts);
    orthogonalise(bases);
    for (std::size_t i = 0; i < terms.size(); ++i) {
      if (rank_of(terms[i]) == 0) continue;
      rights[i] = second.take(terms[i].columns, rank_of(terms[i]));
      at::mm_out(rights[i], matrix(terms[i], terms[i].data).t(), lefts[i]);
      leave(terms[i], lefts[i], rights[i], /*left_is_basis=*/true);
    }
    exchange().sum(second.all());
    for (std::size_t i = 0; i < terms.size(); ++i) {
      if (rank_of(terms[i]) == 0) continue;
      at::Tensor sum = matrix(terms[i], terms[i].data);
      at::mm_out(sum, lefts[i], rights[i].t());
    }
    keep_factors(terms, rights, next_right_);
  }

  /// The one factor is orthogonal and everybody's; the other is exchanged.
  void reduce_alternating(std::span<Term> terms) {
    const bool sends_left = (step() - config().start) % 2 == 0;
    FactorBuffer buffer(elements_of(terms, sends_left, true), terms.front().data.options());
    std::vector<at::Tensor> fixed(terms.size()), sent(terms.size());
    for (std::size_t i = 0; i < terms.size(); ++i) {
      if (rank_of(terms[i]) > 0) fixed[i] = (sends_left ? right_[terms[i].number] : left_[terms[i].number]).clone();
    }
    std::vector<at::Tensor> bases = defined(fixed);
    orthogonalise(bases);
    for (std::size_t i = 0; i < terms.size(); ++i) {
      if (rank_of(terms[i]) == 0) continue;
      const at::Tensor m = matrix(terms[i], terms[i].data);
      sent[i] = buffer.take(sends_left ? terms[i].rows : terms[i].columns, rank_of(terms[i]));
      at::mm_out(sent[i], sends_left ? m : m.t(), fixed[i]);
      sends_left ? leave(terms[i], sent[i], fixed[i], false) : leave(terms[i], fixed[i], sent[i], true);
    }
    FactorBuffer again = buffer;
    with_dense(terms, buffer, [](at::Tensor in, const at::Tensor& data) { in.copy_(data); });
    exchange().sum(buffer.all());
    with_dense(terms, again, [](const at::Tensor& in, at::Tensor data) { data.copy_(in); });
    for (std::size_t i = 0; i < terms.size(); ++i) {
      if (rank_of(terms[i]) == 0) continue;
      at::Tensor sum = matrix(terms[i], terms[i].data);
      sends_left ? at::mm_out(sum, sent[i], fixed[i].t()) : at::mm_out(sum, fixed[i], sent[i].t());
      (sends_left ? next_right_ : next_left_)[terms[i].number] = at::Tensor();
    }
    keep_factors(terms, sent, sends_left ? next_left_ : next_right_);
  }

  /// residual = M_w - left right^T
  void leave(const Term& term, const at::Tensor& left, const at::Tensor& right, bool left_is_basis) {
    const at::Tensor m = matrix(term, term.data);
    at::Tensor residual = next(term);
    at::addmm_out(residual, m, left, right.t(), 1, -1);
    // The columns of one factor are orthonormal and the other is M times it, so |M - P Q^T|^2 = |M|^2 - |Q|^2: M is not
    // read again.
    const at::Tensor whole = squares_of(m), said = squares_of(left_is_basis ? right : left);
    note_error(term, whole.sub(said).clamp_min_(0), whole);
  }

  /// One for each part of the parameter that ranks hold, the same on all copies. Under another layout it begins anew.
  void add_factor(nn::State& state, const std::string& name, std::size_t i, const at::Tensor& factor) {
    if (!factor.defined()) return;
    const layout::Mesh& mesh = groups().mesh();
    const layout::Placement& of = terms()[i].param->placement;
    const layout::AxisNames split = layout::split_axes(mesh, of);
    const layout::Index part = mesh.index_in_group(groups().rank(), split);
    layout::Placement placement{.shape = {mesh.group_size(split), factor.numel()}, .absent_axes = of.absent_axes};
    placement.pieces.push_back(
        {.box = {.begin = {part, 0}, .end = {part + 1, factor.numel()}},
         .replica_axes = layout::subtract(mesh, layout::subtract(mesh, mesh.wide_axes(), split), of.absent_axes)});
    state.add(name + "/" + terms()[i].param->name, factor, std::move(placement), nn::CopiesRule::kRestart);
  }

  Residuals residuals_;
  std::vector<std::int64_t> ranks_;  // 0: dense
  std::vector<at::Tensor> right_, left_, next_right_, next_left_;
};

}  // namespace

std::unique_ptr<BucketReducer> make_powersgd(const ReducerParts& parts) { return std::make_unique<PowerSgd>(parts); }

}  // namespace trireme::parallel
