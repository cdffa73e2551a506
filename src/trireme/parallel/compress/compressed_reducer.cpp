#include "trireme/parallel/compress/compressed_reducer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/kernels/gradient_codes.h"
#include "trireme/layout/reduction.h"
#include "trireme/nn/parallel_context.h"
#include "trireme/parallel/compress/local_clip.h"

namespace trireme::parallel {

bool is_compressed(const nn::Param& param, const spec::CompressConfig& config) {
  return param.placement.shape.size() >= 2 && param.elements() >= config.min_elements;
}

int shard_of(const MeshGroups& groups, const DataParallelOptions& options, const nn::Param& param) {
  const layout::Mesh& mesh = groups.mesh();
  layout::AxisNames within = layout::subtract(mesh, mesh.wide_axes(), options.data);
  // What several stages hold is one thing: they draw the same numbers for it.
  if (options.holders.contains(param.name)) within = layout::subtract(mesh, within, {nn::kPipelineAxis});
  return mesh.index_in_group(groups.rank(), layout::unite(mesh, within, layout::split_axes(mesh, param.placement)));
}

bool is_first_of_copies(const MeshGroups& groups, const DataParallelOptions& options, const nn::Param& param) {
  const layout::Mesh& mesh = groups.mesh();
  const layout::AxisNames split = layout::split_axes(mesh, param.placement);
  return layout::is_first_copy(mesh, groups.rank(), layout::subtract(mesh, options.data, split));
}

double squared(const at::Tensor& tensor) {
  if (tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous())
    return kernels::sign_codes().squares(tensor.const_data_ptr<float>(), tensor.numel());
  const double norm = at::linalg_vector_norm(tensor, 2, {}, false, at::kDouble).item<double>();
  return norm * norm;
}

at::Tensor squares_of(const at::Tensor& tensor) {
  return at::linalg_vector_norm(tensor, 2, {}, false, at::kDouble).square_();
}

CompressedReducer::CompressedReducer(const ReducerParts& parts, Scope scope)
    : options_(parts.options),
      plan_(parts.plan),
      groups_(parts.groups),
      dense_(make_dense_reducer(parts)),
      scope_(config().local_clip || on_gpu() ? Scope::kAll : scope) {
  TRIREME_CHECK(options_.zero <= 1 && !options_.reduce_bf16, "ZeRO {} with compression is refused by spec/rules",
                options_.zero);
  make_sets();
  find_terms();
  if (config().local_clip) local_clip_ = std::make_unique<LocalClip>(plan_, groups_, options_);
}

CompressedReducer::~CompressedReducer() = default;

void CompressedReducer::find_terms() {
  for (Bucket& bucket : plan_.buckets) {
    if (!bucket.trainable) continue;
    CopySet& set = set_of(bucket);
    const int copies = set.lanes.first.copies();
    for (BucketMember& member : bucket.members) {
      const std::vector<std::int64_t> shape = nn::local_shape(member.param->placement);
      const std::int64_t elements = layout::local_elements(member.param->placement);
      // What no other rank has a copy of is not exchanged at all.
      const bool alone = copies == 1 && sets_.front().lanes.first.copies() > 1;
      if (alone || !is_compressed(*member.param, config()) || is_replicated(*member.param) || elements == 0) {
        set.rest.emplace_back(&bucket, &member);
        continue;
      }
      // Of experts the rows of all of them.
      const std::int64_t rows = shape.size() == 3 ? shape[0] * shape[1] : shape.front();
      terms_.push_back({.param = member.param,
                        .bucket = &bucket,
                        .member = &member,
                        .rows = rows,
                        .columns = elements / rows,
                        .copies = copies});
    }
  }
  const auto place = [&](const Term& term) {
    return std::pair(&set_of(*term.bucket), std::string_view(term.param->name));
  };
  std::ranges::sort(terms_, {}, place);
  bucket_terms_.resize(plan_.buckets.size());
  for (std::size_t i = 0; i < terms_.size(); ++i) {
    terms_[i].number = i;
    bucket_terms_[number_of(*terms_[i].bucket)].push_back(terms_[i]);
    set_of(*terms_[i].bucket).terms.push_back(terms_[i]);
  }
  for (CopySet& set : sets_)
    std::ranges::sort(set.rest, {}, [](const auto& entry) { return entry.second->param->name; });
}

/// One for each set of axes along which some bucket's copies lie: those of the options as far as the bucket is summed
/// along them.
void CompressedReducer::make_sets() {
  const layout::Mesh& mesh = groups_.mesh();
  std::vector<layout::AxisNames> copies{options_.copies}, wanted{options_.copies};
  for (const Bucket& bucket : plan_.buckets) {
    const layout::AxisNames axes = layout::intersect(mesh, options_.copies, bucket.axes);
    wanted.push_back(layout::subtract(mesh, bucket.axes, options_.copies));
    if (bucket.trainable && std::ranges::find(copies, axes) == copies.end()) copies.push_back(axes);
  }
  std::ranges::sort(copies.begin() + 1, copies.end());
  wanted.insert(wanted.end(), copies.begin(), copies.end());
  groups_.agree_on(wanted);
  const int second = scope_ == Scope::kBucket ? 1 : 0;
  groups_.agree_on(copies, second + 1);
  for (const layout::AxisNames& axes : copies)
    sets_.push_back(
        {.axes = axes, .lanes = {CopyExchange(groups_.along(axes)), CopyExchange(groups_.along(axes, second))}});
  for (const Bucket& bucket : plan_.buckets)
    inside_.push_back(groups_.along(layout::subtract(mesh, bucket.axes, options_.copies)));
}

std::size_t CompressedReducer::number_of(const Bucket& bucket) const {
  return static_cast<std::size_t>(&bucket - plan_.buckets.data());
}

const CompressedReducer::CopySet& CompressedReducer::set_of(const Bucket& bucket) const {
  const layout::AxisNames axes = layout::intersect(groups_.mesh(), options_.copies, bucket.axes);
  return *std::ranges::find(sets_, axes, &CopySet::axes);
}

CompressedReducer::CopySet& CompressedReducer::set_of(const Bucket& bucket) {
  return const_cast<CopySet&>(std::as_const(*this).set_of(bucket));
}

comm::Group* CompressedReducer::inside_of(const Bucket& bucket) const { return inside_[number_of(bucket)]; }

/// Ranks of one copy of the model that all hold a parameter would each compress it among others, differently, and part.
bool CompressedReducer::is_replicated(const nn::Param& param) const {
  const layout::Mesh& mesh = groups_.mesh();
  const layout::AxisNames apart =
      layout::unite(mesh, layout::split_axes(mesh, param.placement), param.placement.absent_axes);
  return !layout::subtract(mesh, layout::subtract(mesh, mesh.wide_axes(), options_.data), apart).empty();
}

std::string CompressedReducer::description() const {
  std::string text = "mean-scaled gradient";
  const int inside = groups_.mesh().group_size(layout::subtract(groups_.mesh(), options_.data, options_.copies));
  if (inside > 1) text += fmt::format(" -> dense sum over {} ranks", inside);
  if (config().local_clip) {
    text += fmt::format(" -> local clip to {:.4g}", options_.grad_clip_norm / std::sqrt(copies()));
  }
  text += fmt::format(" -> {} -> {}", method(), ending());
  std::size_t all = terms_.size();
  for (const CopySet& set : sets_) all += set.rest.size();
  text += fmt::format("; {} of {} parameters compressed", terms_.size(), all);
  for (const CopySet& set : sets_) {
    if (&set != sets_.data())
      text += fmt::format(", {} of them (experts) over {} copies", set.terms.size(), set.lanes.first.copies());
  }
  if (begins_early()) text += ", each bucket from when it is full, beside backward";
  if (config().start > 0) text += fmt::format(", dense until step {}", config().start);
  return text;
}

double CompressedReducer::sent_bytes(const Bucket& bucket, int /*launches*/) const {
  if (!bucket.trainable) return 0;
  const auto width = static_cast<double>(c10::elementSize(bucket.gradient_type));
  const auto dense = [&](double elements, int ranks) { return 2.0 * (ranks - 1) / ranks * elements * width; };
  const comm::Group* inside = inside_of(bucket);
  double sum = inside != nullptr ? dense(static_cast<double>(bucket.elements), inside->size()) : 0;
  for (const Term& term : terms_) {
    if (term.bucket == &bucket) sum += term_bytes(term);
  }
  const CopySet& set = set_of(bucket);
  for (const auto& [other, member] : set.rest) {
    if (other == &bucket)
      sum += dense(static_cast<double>(layout::local_elements(member->param->placement)), set.lanes.first.copies());
  }
  return sum;
}

std::vector<CompressedPart> CompressedReducer::compressed_parts() const {
  std::vector<CompressedPart> parts;
  for (const Term& term : terms_) {
    parts.push_back({.name = term.param->name,
                     .placement = term.param->placement,
                     .rows = term.rows,
                     .columns = term.columns,
                     .shard = shard(*term.param),
                     .copies = term.copies,
                     .first = is_first_of_copies(groups_, options_, *term.param)});
  }
  return parts;
}

int CompressedReducer::shard(const nn::Param& param) const { return shard_of(groups_, options_, param); }

void CompressedReducer::begin_step(std::int64_t step) {
  step_ = step;
  dense_step_ = is_dense(step);
  exchange_begun_ = exchanged_ = false;
}

void CompressedReducer::launch(Bucket& bucket) {
  comm::Group* inside = inside_of(bucket);
  if (loss_scale_ != 1 && keeps_gradients()) bucket.sending.mul_(1 / loss_scale_);
  if (dense_step_ && !(keeps_dense() && inside != nullptr)) {
    before_dense(bucket);
    dense_->launch(bucket);
    return;
  }
  if (inside != nullptr) bucket.work = inside->all_reduce(device::to_buffer(bucket.sending), comm::Reduce::kSum);
  if (dense_step_ || !begins_early()) return;
  begin_bucket(bucket);
  under_way_.advance();
}

void CompressedReducer::settle(Bucket& bucket) {
  if (dense_step_) {
    if (keeps_dense() && inside_of(bucket) != nullptr) {
      bucket.work.wait();
      bucket.work = {};
      before_dense(bucket);
      CopyExchange& exchange = set_of(bucket).lanes.first;
      exchange.sum(bucket.sending);
      exchange.take_sent_bytes(), exchange.take_waited_seconds();  // counted as dense below
      bucket.arriving =
          options_.zero > 0 ? bucket.sending.narrow(0, bucket.begin, bucket.end - bucket.begin) : bucket.sending;
    } else {
      dense_->settle(bucket);
    }
    const double bytes = dense_->sent_bytes(bucket, 1);
    report_.sent_bytes += bytes;
    report_.dense_bytes += bytes;
    if (loss_scale_ != 1 && keeps_gradients()) bucket.arriving.mul_(loss_scale_);
    return;
  }
  if (!std::exchange(exchanged_, true)) exchange_all();
  report_.dense_bytes += dense_->sent_bytes(bucket, 1);
  if (const comm::Group* inside = inside_of(bucket))
    report_.sent_bytes += 2.0 * (inside->size() - 1) / inside->size() * static_cast<double>(bucket.sending.nbytes());
  bucket.arriving =
      options_.zero > 0 ? bucket.sending.narrow(0, bucket.begin, bucket.end - bucket.begin) : bucket.sending;
  if (loss_scale_ != 1) bucket.arriving.mul_(loss_scale_);
}

void CompressedReducer::finish(std::span<Bucket> buckets) {
  if (dense_step_) dense_->finish(buckets);
}

void CompressedReducer::begin_exchange() {
  if (std::exchange(exchange_begun_, true)) return;
  begin_errors();
}

void CompressedReducer::take_data(Bucket& bucket, std::span<Term> terms) {
  for (Term& term : terms) {
    term.data = term.part_of(bucket.sending);
    report_.elements += term.elements();
  }
  before_rest(bucket, terms);
}

Stages CompressedReducer::stages_of(Bucket& bucket) {
  std::vector<Term>& terms = bucket_terms_[number_of(bucket)];
  Stages found = terms.empty() ? Stages{} : stages(set_of(bucket).lanes, terms);
  if (found.empty()) found.emplace_back([] { return comm::Work(); });
  found.front() = [this, &bucket, &terms, first = std::move(found.front())] {
    take_data(bucket, terms);
    return first();
  };
  return found;
}

void CompressedReducer::begin_bucket(Bucket& bucket) {
  begin_exchange();
  under_way_.add(std::exchange(bucket.work, comm::Work()), stages_of(bucket));
}

void CompressedReducer::exchange_all() {
  const double before = under_way_.take_seconds();  // beside backward
  const auto begin = std::chrono::steady_clock::now();
  begin_exchange();
  report_.kernel_seconds += before;
  report_.beside_seconds += before;
  if (scope_ == Scope::kBucket) {
    for (Bucket& bucket : plan_.buckets) {
      if (bucket.trainable && !config().overlap) begin_bucket(bucket);
    }
    for (CopySet& set : sets_) under_way_.add({}, stages_of_rest(set));
  } else {
    wait_inside();
    if (local_clip_) local_clip_->clip(plan_, copies());
    for (Bucket& bucket : plan_.buckets) {
      if (bucket.trainable) take_data(bucket, bucket_terms_[number_of(bucket)]);
    }
    for (CopySet& set : sets_) {
      for (Term& term : set.terms) term.data = term.part_of(term.bucket->sending);
      under_way_.add({}, stages_of_rest(set));  // its latency passes beside the method's own exchanges
    }
    for (CopySet& set : sets_) {
      if (!set.terms.empty()) under_way_.add({}, stages(set.lanes, set.terms));
    }
  }
  under_way_.finish();
  double waited = 0;
  for (CopySet& set : sets_) {
    for (CopyExchange* exchange : {&set.lanes.first, &set.lanes.second}) {
      report_.sent_bytes += exchange->take_sent_bytes();
      waited += exchange->take_waited_seconds();
    }
    for (Term& term : set.terms) term.data = at::Tensor();
  }
  read_errors();
  for (std::vector<Term>& terms : bucket_terms_) {
    for (Term& term : terms) term.data = at::Tensor();
  }
  if (!terms_.empty()) ++report_.rounds;
  report_.kernel_seconds += under_way_.take_seconds() - waited;
  report_.seconds += before + seconds_since(begin);
}

void CompressedReducer::wait_inside() {
  for (Bucket& bucket : plan_.buckets) {
    if (!bucket.trainable || inside_of(bucket) == nullptr) continue;
    bucket.work.wait();
    bucket.work = {};
  }
}

/// body(part of the flat sum, the gradient, the parameter) of each.
template <typename Body>
void CompressedReducer::for_rest(CopySet& set, Body&& body) {
  std::int64_t at = 0;
  for (const auto& [bucket, member] : set.rest) {
    const std::int64_t size = layout::local_elements(member->param->placement);
    body(set.rest_sum.narrow(0, at, size), bucket->sending.narrow(0, member->offset, size), *member->param);
    at += size;
  }
}

Stages CompressedReducer::stages_of_rest(CopySet& set) {
  std::int64_t elements = 0;
  for (const auto& [bucket, member] : set.rest) elements += layout::local_elements(member->param->placement);
  if (elements == 0) return {};
  const auto begin = [this, &set, elements] {
    set.rest_sum = at::empty({elements}, set.rest.front().first->sending.options());
    for_rest(set, [](at::Tensor in_flat, const at::Tensor& gradient, const nn::Param&) { in_flat.copy_(gradient); });
    return set.lanes.first.start_sum(set.rest_sum);
  };
  const auto end = [this, &set] {
    for_rest(set, [&](const at::Tensor& in_flat, at::Tensor gradient, const nn::Param& param) {
      gradient.copy_(in_flat);
      after_rest(param, gradient);
    });
    set.rest_sum = at::Tensor();
    return comm::Work();
  };
  return {begin, end};
}

void CompressedReducer::note_error(const Term& term, double left_squared, double whole_squared) {
  report_.errors.emplace_back(term.param->name, whole_squared > 0 ? std::sqrt(left_squared / whole_squared) : 0);
  left_squared_ += left_squared;
  whole_squared_ += whole_squared;
}

void CompressedReducer::note_error(const Term& term, at::Tensor left_squared, at::Tensor whole_squared) {
  unread_errors_.emplace_back(&term, std::pair(std::move(left_squared), std::move(whole_squared)));
}

void CompressedReducer::count_seconds(double seconds) {
  report_.seconds += seconds;
  report_.update_seconds += seconds;
  report_.kernel_seconds += seconds - exchange().take_waited_seconds();
}

void CompressedReducer::begin_errors() {
  report_.errors.clear();
  left_squared_ = whole_squared_ = 0;
}

void CompressedReducer::read_errors() {
  std::vector<at::Tensor> numbers;
  for (const auto& [term, squares] : unread_errors_) {
    numbers.push_back(squares.first);
    numbers.push_back(squares.second);
  }
  if (!numbers.empty()) {
    const at::Tensor here = at::stack(numbers).cpu();
    const auto* at = here.const_data_ptr<double>();
    for (const auto& [term, squares] : std::exchange(unread_errors_, {})) {
      note_error(*term, at[0], at[1]);
      at += 2;
    }
  }
  report_.relative_error = whole_squared_ > 0 ? std::sqrt(left_squared_ / whole_squared_) : 0;
}

}  // namespace trireme::parallel
