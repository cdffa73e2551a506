#include "tests/pipeline/support.h"

#include <ATen/ATen.h>

namespace trireme::pipeline {

spec::ModelShape small_shape(spec::Family family, std::int64_t layers) {
  spec::ModelShape shape = spec::family_shape(family);
  shape.vocab_size = 19;
  shape.max_seq_len = 16;
  shape.hidden_size = 8;
  shape.num_layers = layers;
  shape.num_heads = 2;
  shape.num_kv_heads = family == spec::Family::kLlama ? 1 : 2;
  shape.head_dim = 4;
  shape.ffn_size = 12;
  if (family == spec::Family::kTransformer) shape.num_encoder_layers = 2;
  return shape;
}

Problem small_problem(spec::Family family, std::int64_t layers, int micros) {
  Problem problem{.shape = small_shape(family, layers), .micros = micros};
  problem.optim.kind = spec::OptimizerKind::kAdamw;
  problem.optim.learning_rate = 1e-2;
  problem.optim.grad_clip_norm = 0.5;  // less than the norms here: every step is clipped
  return problem;
}

std::int64_t number(std::uint64_t seed, std::uint64_t index, std::int64_t end) {
  double draw = 0;
  Random(seed, "tests/pipeline").fill_uniform(index, std::span(&draw, 1));
  return std::min(end - 1, static_cast<std::int64_t>(draw * static_cast<double>(end)));
}

static at::Tensor tokens(std::uint64_t seed, std::int64_t rows, std::int64_t length, std::int64_t end) {
  at::Tensor ids = at::empty({rows, length}, at::kLong);
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    ids.data_ptr<std::int64_t>()[i] = number(seed, static_cast<std::uint64_t>(i), end);
  }
  return ids;
}

Micro make_micro(const Problem& problem, int micro) {
  const std::int64_t rows = 2 + micro % 2, length = 5 + micro / 2 % 3, vocabulary = problem.shape.vocab_size;
  const auto seed = static_cast<std::uint64_t>(1000 + 10 * micro);
  Micro made;
  if (problem.shape.num_encoder_layers > 0) {
    made.inputs.push_back(tokens(seed + 1, rows, length + 1, vocabulary));
    made.context.source = nn::plain_sequence(rows, length + 1);
  }
  made.inputs.push_back(tokens(seed + 2, rows, length, vocabulary));
  made.context.sequence = nn::plain_sequence(rows, length);
  made.context.targets = tokens(seed + 3, rows, length, vocabulary);
  for (std::int64_t i = 0; i < length; i += 4) made.context.targets[0][i] = -100;
  made.context.samples = at::arange(rows, at::kLong) + 3 * micro;
  made.context.training = true;
  made.context.seed = problem.seed;
  made.context.step = micro / problem.micros;
  return made;
}

double targets_of(const Problem& problem, int step) {
  double count = 0;
  for (int i = 0; i < problem.micros; ++i) {
    count += make_micro(problem, step * problem.micros + i).context.targets.ne(-100).sum().item<double>();
  }
  return count;
}

Outcome train_serially(const Problem& problem) {
  Outcome outcome;
  auto model = models::build(problem.shape, problem.build);
  nn::initialise(model->params, nn::Precision::kFp64, problem.seed);
  auto optimizer = optim::make_optimizer(problem.optim, model->params);
  for (int step = 0; step < problem.steps; ++step) {
    nn::zero_grad(model->params);
    const double targets = targets_of(problem, step);
    double loss = 0;
    for (int i = 0; i < problem.micros; ++i) {
      Micro micro = make_micro(problem, step * problem.micros + i);
      micro.context.gradient_scale = 1 / targets;
      nn::Tape tape;
      model->forward(micro.inputs, micro.context, &tape);
      model->backward(micro.context, tape);
      for (const nn::LossTerm& term : micro.context.losses) loss += term.sum;
    }
    outcome.losses.push_back(loss / targets);
    outcome.norms.push_back(optim::update(*optimizer, {.learning_rate = problem.optim.learning_rate}).gradient_norm);
  }
  for (const nn::Param& param : model->params) outcome.params[param.name] = param.master.clone();
  return outcome;
}

/// The table of a kind, complete.
schedule::Schedule table_of(std::string_view kind, schedule::Shape shape, int repeated) {
  schedule::Schedule table = schedule::build(kind, shape);
  if (!schedule::has_updates(table)) table = schedule::add_updates(table);
  if (repeated > 1) table = schedule::repeat(table, repeated);
  return schedule::has_transfers(table) ? table : schedule::add_transfers(table);
}

/// Copies of a parameter on several ranks must agree to the bit.
void collect(Outcome& outcome, std::mutex& mutex, const nn::Params& params) {
  const std::lock_guard lock(mutex);
  for (const nn::Param& param : params) {
    const auto [found, is_new] = outcome.params.try_emplace(param.name, param.master.clone());
    if (is_new) continue;
    EXPECT_TRUE(at::equal(found->second, param.master)) << "copies of " << param.name << " differ";
  }
}

Outcome train_as_pipeline(const Problem& problem, const Pipelined& how) {
  Outcome outcome;
  std::mutex mutex;
  comm::run_ranks(
      how.ranks * how.data_parallel,
      [&](comm::Rank& rank) {
        at::set_num_threads(1);
        const int replica = rank.rank() / how.ranks, stage_rank = rank.rank() % how.ranks;
        const auto pipeline = rank.world().split(replica, stage_rank, "pp");
        const auto data_parallel = rank.world().split(stage_rank, replica, "dp");
        parallel::MeshGroups groups(rank.world(), layout::Mesh({{"dp", how.data_parallel}, {"pp", how.ranks}}));
        const nn::ParallelContext context{.mesh = groups.mesh(), .rank = rank.rank()};
        models::BuildOptions build = problem.build;
        build.parallel = &context;
        const std::vector<std::string> names = chain_names(problem.shape, build);
        const Split split =
            how.starts.empty() ? split_by_count(names, how.table.chunks()) : split_at(names, how.starts);
        Stage stage = build_stage({.shape = problem.shape,
                                   .table = how.table,
                                   .split = split,
                                   .precision = nn::Precision::kFp64,
                                   .rank = stage_rank,
                                   .build = build});
        parallel::DataParallelOptions sharing{.precision = nn::Precision::kFp64};
        if (how.data_parallel > 1) sharing.data = {"dp"};
        parallel::DataParallel copies(units_of(stage), stage.model->params, groups, sharing, held_apart(stage));
        nn::initialise(stage.model->params, nn::Precision::kFp64, problem.seed);
        auto optimizer = optim::make_optimizer(problem.optim, stage.model->params);
        const auto predictor =
            make_weight_predictor(how.table.weights, *optimizer, [&] { return problem.optim.learning_rate; });
        Executor executor({.table = how.table,
                           .stage = stage,
                           .pipeline = *pipeline,
                           .data_parallel = how.data_parallel > 1 ? &copies : nullptr,
                           .predictor = predictor.get()});
        const bool flush = how.table.weights == schedule::WeightChoice::kFlush;
        const int at_once = how.table.steps(), mine = problem.micros / how.data_parallel;
        for (int step = 0; step < problem.steps; step += at_once) {
          std::vector<double> norms;
          const RunReport report = executor.run(
              {.micro =
                   [&](int micro) {
                     const int of_step = step + micro / mine;
                     Micro made = make_micro(problem, of_step * problem.micros + replica * mine + micro % mine);
                     made.context.gradient_scale = 1 / targets_of(problem, of_step);
                     return made;
                   },
               .update =
                   [&](int) {
                     norms.push_back(optim::update(*optimizer, {.learning_rate = problem.optim.learning_rate,
                                                                .across = flush ? &executor.across() : nullptr})
                                         .gradient_norm);
                   }});
          for (int i = 0; i < at_once; ++i) {
            double loss = nn::sum_of(report.steps[static_cast<std::size_t>(i)].losses);
            data_parallel->all_reduce(comm::Buffer{&loss, 1, comm::DType::kF64}, comm::Reduce::kSum).wait();
            if (rank.rank() != 0) continue;
            outcome.losses.push_back(loss / targets_of(problem, step + i));
            outcome.norms.push_back(norms[static_cast<std::size_t>(i)]);
          }
        }
        collect(outcome, mutex, stage.model->params);
      },
      quiet());
  return outcome;
}

void expect_equal(const Outcome& a, const Outcome& b, double tolerance) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    EXPECT_NEAR(a.losses[i], b.losses[i], tolerance * std::abs(a.losses[i])) << "loss of step " << i;
  }
  ASSERT_EQ(a.norms.size(), b.norms.size());
  for (std::size_t i = 0; i < a.norms.size(); ++i) {
    EXPECT_NEAR(a.norms[i], b.norms[i], tolerance * a.norms[i]) << "norm of step " << i;
  }
  ASSERT_EQ(a.params.size(), b.params.size());
  for (const auto& [name, tensor] : a.params) {
    const double difference = at::linalg_vector_norm(tensor - b.params.at(name)).item<double>();
    EXPECT_LE(difference, tolerance * (1 + at::linalg_vector_norm(tensor).item<double>())) << name;
  }
}

void expect_same_bits(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  for (const auto& [name, tensor] : a.params) EXPECT_TRUE(at::equal(tensor, b.params.at(name))) << name;
}

}  // namespace trireme::pipeline
