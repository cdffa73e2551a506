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
  Stages stages(ExchangeLanes& lanes, std::span<Term> terms) override {
    const auto round = std::make_shared<Round>(Round{.terms = terms});  // shared by the stages
    if (config().alternate) {
      return {[=, this, &lanes] { return send_one(lanes.first, *round); },
              [=, this] { return end_one(*round), comm::Work(); }};
    }
    return {[=, this, &lanes] { return send_left(lanes.first, *round); },
            [=, this, &lanes] { return send_right(lanes.second, *round); },
            [=, this] { return end_both(*round), comm::Work(); }};
  }

 private:
  /// What stages share.
  struct Round {
    std::span<Term> terms;
    std::vector<at::Tensor> lefts = {}, rights = {};  // of each term; undefined where it goes dense
    std::vector<at::Tensor> squares = {};             // |M_w|^2 of each
    at::Tensor first = {}, second = {};               // that travel
  };
  std::int64_t rank_of(const Term& term) const { return ranks_[term.number]; }
  static at::Tensor matrix(const Term& term, const at::Tensor& flat) { return flat.view({term.rows, term.columns}); }
  at::Tensor next(const Term& term) { return matrix(term, term.part_of(residuals_.next(*term.bucket))); }
  /// M_w stands where the sum will. Gives |M_w|^2: M is read for its two factors and for the residual, not for that.
  at::Tensor compensate(Term& term) { return add_squared(term.data, term.part_of(residuals_.kept(*term.bucket))); }

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
  /// Matrices that two factors would not make smaller travel whole behind the first ones.
  void add_dense(std::span<Term> terms, FactorBuffer& buffer) {
    for (const Term& term : terms) {
      if (rank_of(term) == 0) buffer.take(term.elements(), 1).view({-1}).copy_(term.data);
    }
  }
  /// Their sums come back from behind the factors.
  void take_dense(Round& round, std::int64_t factors) {
    for (Term& term : round.terms) {
      if (rank_of(term) > 0) continue;
      term.data.copy_(round.first.narrow(0, factors, term.elements()));
      factors += term.elements();
    }
  }
  void compensate(Round& round) {
    round.squares.resize(round.terms.size());
    for (std::size_t i = 0; i < round.terms.size(); ++i) {
      if (rank_of(round.terms[i]) > 0) round.squares[i] = compensate(round.terms[i]);
    }
  }

  comm::Work send_left(CopyExchange& exchange, Round& round) {
    const std::span<Term> terms = round.terms;
    compensate(round);
    FactorBuffer first(elements_of(terms, true, true), terms.front().data.options());
    round.lefts.resize(terms.size()), round.rights.resize(terms.size());
    for (std::size_t i = 0; i < terms.size(); ++i) {
      if (rank_of(terms[i]) == 0) continue;
      round.lefts[i] = first.take(terms[i].rows, rank_of(terms[i]));
      const at::Tensor start =
          config().warm_start ? right_[terms[i].number] : factor_to_start(terms[i], terms[i].columns);
      multiply_factor(round.lefts[i], matrix(terms[i], terms[i].data), start, /*transposed=*/false);
    }
    add_dense(terms, first);
    round.first = first.all();
    return exchange.start_sum(round.first);
  }
  comm::Work send_right(CopyExchange& exchange, Round& round) {
    const std::span<Term> terms = round.terms;
    take_dense(round, elements_of(terms, true, false));
    FactorBuffer second(elements_of(terms, false, false), terms.front().data.options());
    std::vector<at::Tensor> bases = defined(round.lefts);
    orthogonalise(bases);
    for (std::size_t i = 0; i < terms.size(); ++i) {
      if (rank_of(terms[i]) == 0) continue;
      round.rights[i] = second.take(terms[i].columns, rank_of(terms[i]));
      multiply_factor(round.rights[i], matrix(terms[i], terms[i].data), round.lefts[i], /*transposed=*/true);
      leave(round, i, /*left_is_basis=*/true);
    }
    round.second = second.all();
    return exchange.start_sum(round.second);
  }
  void end_both(Round& round) {
    for (std::size_t i = 0; i < round.terms.size(); ++i) {
      if (rank_of(round.terms[i]) == 0) continue;
      at::Tensor sum = matrix(round.terms[i], round.terms[i].data);
      at::mm_out(sum, round.lefts[i], round.rights[i].t());
    }
    keep_factors(round.terms, round.rights, next_right_);
  }

  /// One factor is orthogonal and everybody's; the other is exchanged.
  bool sends_left() const { return (step() - config().start) % 2 == 0; }
  comm::Work send_one(CopyExchange& exchange, Round& round) {
    const std::span<Term> terms = round.terms;
    compensate(round);
    FactorBuffer buffer(elements_of(terms, sends_left(), true), terms.front().data.options());
    round.lefts.resize(terms.size()), round.rights.resize(terms.size());
    std::vector<at::Tensor>&sent = sends_left() ? round.lefts : round.rights,
    &fixed = sends_left() ? round.rights : round.lefts;
    for (std::size_t i = 0; i < terms.size(); ++i) {
      if (rank_of(terms[i]) > 0) fixed[i] = (sends_left() ? right_[terms[i].number] : left_[terms[i].number]).clone();
    }
    std::vector<at::Tensor> bases = defined(fixed);
    orthogonalise(bases);
    for (std::size_t i = 0; i < terms.size(); ++i) {
      if (rank_of(terms[i]) == 0) continue;
      const at::Tensor m = matrix(terms[i], terms[i].data);
      sent[i] = buffer.take(sends_left() ? terms[i].rows : terms[i].columns, rank_of(terms[i]));
      multiply_factor(sent[i], m, fixed[i], /*transposed=*/!sends_left());
      leave(round, i, /*left_is_basis=*/!sends_left());
    }
    add_dense(terms, buffer);
    round.first = buffer.all();
    return exchange.start_sum(round.first);
  }
  void end_one(Round& round) {
    take_dense(round, elements_of(round.terms, sends_left(), false));
    for (std::size_t i = 0; i < round.terms.size(); ++i) {
      if (rank_of(round.terms[i]) == 0) continue;
      at::Tensor sum = matrix(round.terms[i], round.terms[i].data);
      at::mm_out(sum, round.lefts[i], round.rights[i].t());
      (sends_left() ? next_right_ : next_left_)[round.terms[i].number] = at::Tensor();
    }
    keep_factors(round.terms, sends_left() ? round.lefts : round.rights, sends_left() ? next_left_ : next_right_);
  }

  /// residual = M_w - left right^T
  void leave(Round& round, std::size_t i, bool left_is_basis) {
    const Term& term = round.terms[i];
    const at::Tensor &left = round.lefts[i], &right = round.rights[i];
    at::Tensor residual = next(term);
    at::addmm_out(residual, matrix(term, term.data), left, right.t(), 1, -1);
    // The columns of one factor are orthonormal and the other is M times it, so |M - P Q^T|^2 = |M|^2 - |Q|^2.
    const at::Tensor& whole = round.squares[i];
    note_error(term, whole.sub(squares_of(left_is_basis ? right : left)).clamp_min_(0), whole);
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
