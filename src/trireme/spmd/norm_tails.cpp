#include "trireme/spmd/norm_tails.h"

#include <algorithm>
#include <optional>
#include <set>

namespace trireme::spmd {
namespace {

struct FoundTail {
  int norm = -1, other = -1, add = -1, relu = -1;
};

class TailFinder {
 public:
  TailFinder(const pg::Graph& both, const pg::Uses& uses, const std::vector<pg::IterationSpace>& spaces,
             const std::vector<pg::Link>& links, const std::vector<pg::ProgramStep>& program,
             const pg::Strategy& strategy)
      : both_(both), uses_(uses), spaces_(spaces), strategy_(strategy), converted_(both.tensors.size()) {
    for (const pg::ProgramStep& step : program) {
      if (step.again) again_.insert(step.op);
    }
    for (const pg::Link& link : links) {
      const pg::LinkEnds ends = ends_of(both, spaces, link, strategy);
      if (!convert(strategy.mesh, both.bytes(both.tensor(link.tensor)), ends.from, ends.to).empty())
        converted_[static_cast<std::size_t>(link.tensor)] = true;
    }
  }

  NormTails run() {
    NormTails tails = no_norm_tails(both_);
    int count = 0;
    for (std::size_t i = 0; i < both_.ops.size(); ++i) {
      if (const std::optional<FoundTail> tail = tail_of(static_cast<int>(i)); tail && take(*tail, count, tails))
        ++count;
    }
    return tails;
  }

 private:
  bool is_forward(int op, std::string_view function, std::size_t inputs) const {
    const pg::Op& at = both_.op(op);
    return at.kind == pg::OpKind::kElementwise && at.function == function && at.forward < 0 &&
           at.inputs.size() == inputs && !again_.contains(op);
  }
  const std::vector<int>& readers(int tensor) const { return uses_.consumers[static_cast<std::size_t>(tensor)]; }
  int producer(int tensor) const { return uses_.producer[static_cast<std::size_t>(tensor)]; }
  /// Only `reader` reads the tensor, where it lies.
  bool goes_to(int tensor, int reader) const {
    return readers(tensor) == std::vector<int>{reader} && !converted_[static_cast<std::size_t>(tensor)];
  }

  /// A batch norm of images whose statistics no other rank shares.
  bool is_norm(int op) const {
    if (op < 0 || again_.contains(op)) return false;
    const pg::Op& norm = both_.op(op);
    if (norm.forward >= 0 || !is_batch_norm(norm)) return false;
    const pg::Tensor& x = both_.tensor(norm.inputs[0]);
    if (x.dims.size() != 4 || norm.dims.size() != 3 || std::ranges::count(norm.dims, x.dims[1]) != 0) return false;
    const pg::IterationSpace& space = spaces_[static_cast<std::size_t>(op)];
    const pg::Split& split = strategy_.splits[static_cast<std::size_t>(op)];
    return std::ranges::none_of(exchanges_of(both_, strategy_.mesh, norm, space, split),
                                [](const pg::Exchange& exchange) { return exchange.tensor < 0; });
  }

  std::optional<FoundTail> tail_of(int relu) const {
    if (!is_forward(relu, "relu", 1)) return {};
    const int before = both_.op(relu).inputs[0], from = producer(before);
    if (from < 0 || !goes_to(before, relu)) return {};
    if (is_norm(from)) return FoundTail{.norm = from, .relu = relu};
    if (!is_forward(from, "add", 2)) return {};
    const std::vector<int>& summands = both_.op(from).inputs;
    if (summands[0] == summands[1]) return {};
    FoundTail tail{.add = from, .relu = relu};
    for (const int summand : summands) {
      if (both_.tensor(summand).dims != both_.tensor(before).dims) return {};
      if (!is_norm(producer(summand)) || !goes_to(summand, from)) continue;
      (tail.norm < 0 ? tail.norm : tail.other) = producer(summand);
    }
    return tail.norm < 0 ? std::nullopt : std::optional(tail);
  }

  /// The operator that makes an operator's gradients at once; -1: none does.
  int gradient_of_op(int op) const {
    for (std::size_t i = 0; i < both_.ops.size(); ++i) {
      if (both_.ops[i].forward == op && both_.ops[i].part == pg::Part::kBackward) return static_cast<int>(i);
    }
    return -1;
  }

  bool take(const FoundTail& tail, int number, NormTails& tails) const {
    const int relu_gradient = gradient_of_op(tail.relu), norm_gradient = gradient_of_op(tail.norm);
    const int other_gradient = tail.other < 0 ? -1 : gradient_of_op(tail.other);
    if (relu_gradient < 0 || norm_gradient < 0 || (tail.other >= 0 && other_gradient < 0)) return false;
    const bool adds = tail.add >= 0;
    const int before = both_.op(relu_gradient).outputs[0];
    if (!adds && !goes_to(before, norm_gradient)) return false;
    const auto set = [&](int op, TailPart part) {
      if (op >= 0) tails.members[static_cast<std::size_t>(op)] = {.tail = number, .part = part, .adds = adds};
    };
    const auto unmake = [&](int tensor) { tails.unmade[static_cast<std::size_t>(tensor)] = true; };
    set(tail.norm, TailPart::kNorm);
    set(tail.other, TailPart::kOther);
    set(tail.add, TailPart::kAdd);
    set(tail.relu, TailPart::kRelu);
    set(relu_gradient, TailPart::kReluGradient);
    set(norm_gradient, TailPart::kNormGradient);
    set(other_gradient, TailPart::kOtherGradient);
    unmake(both_.op(tail.norm).outputs[0]);
    if (tail.other >= 0) unmake(both_.op(tail.other).outputs[0]);
    if (!adds) {
      unmake(before);
      return true;
    }
    unmake(both_.op(tail.add).outputs[0]);
    const int gradient = both_.op(relu_gradient).inputs[0], sum = producer(gradient);
    if (sum >= 0 && both_.op(sum).forward == tail.relu && both_.op(sum).function == "add" &&
        both_.op(sum).inputs.size() == 2 && goes_to(gradient, relu_gradient)) {
      set(sum, TailPart::kGradientSum);
      unmake(gradient);
    }
    return true;
  }

  const pg::Graph& both_;
  const pg::Uses& uses_;
  const std::vector<pg::IterationSpace>& spaces_;
  const pg::Strategy& strategy_;
  std::vector<bool> converted_;  // [tensor] on its way to some reader
  std::set<int> again_;          // operators that are recomputed
};

}  // namespace

NormTails no_norm_tails(const pg::Graph& both) {
  return {.members = std::vector<NormTails::Member>(both.ops.size()),
          .unmade = std::vector<bool>(both.tensors.size(), false)};
}

NormTails norm_tails_of(const pg::Graph& both, const pg::Uses& uses, const std::vector<pg::IterationSpace>& spaces,
                        const std::vector<pg::Link>& links, const std::vector<pg::ProgramStep>& program,
                        const pg::Strategy& strategy) {
  return TailFinder(both, uses, spaces, links, program, strategy).run();
}

}  // namespace trireme::spmd
