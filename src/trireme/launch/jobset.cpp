// Kubernetes: a JobSet (jobset.sigs.k8s.io) with one indexed Job, a pod for each node. A pod starts its ranks by
// `trireme launch --node-rank`; they meet at the stable host name of pod 0.
#include <fmt/format.h>

#include "trireme/base/text.h"
#include "trireme/launch/launcher.h"
#include "trireme/launch/quote.h"

namespace trireme::launch {
namespace {

constexpr const char* kReplicated = "nodes";  // the name of the one Job in the set

class JobSet final : public Launcher {
 public:
  std::string name() const override { return "jobset"; }
  std::string value() const override { return {}; }
  std::string meaning() const override { return "create a JobSet in Kubernetes (kubectl apply)"; }
  std::vector<Setting> settings() const override {
    return {{"image", "IMAGE", "container image that holds trireme, the recipe and the data", ""},
            {"namespace", "NAME", "Kubernetes namespace; default: kubectl's", ""},
            {"claim", "NAME", "persistent volume claim that all pods mount at --mount, for the run's directory", ""},
            {"mount", "PATH", "where --claim is mounted", "/runs"},
            {"token-secret", "NAME", "secret whose key `token` is the job's token: who knows it may join", ""},
            {"restarts", "N", "how often the set is started again when a pod fails", "10"},
            {"gpu-resource", "NAME", "resource that a GPU is asked for by", "nvidia.com/gpu"}};
  }
  std::string program() const override { return "trireme"; }

  std::vector<config::Problem> find_problems(const Job& job, const Settings& settings) const override {
    std::vector<config::Problem> problems;
    if (settings.text("image").empty()) {
      problems.push_back({.key = "--image", .reason = "a pod needs an image", .hint = "--image registry/trireme:TAG"});
    }
    if (settings.text("claim").empty()) {
      problems.push_back(
          {.key = "--claim",
           .reason = "without a volume the run's directory, and with it every checkpoint, ends with its pod",
           .hint = "--claim NAME of a volume that several pods may write (ReadWriteMany)"});
    } else if (!below(job.out, settings.text("mount"))) {
      problems.push_back({.key = "--out",
                          .reason = fmt::format("{} is not below {}, where the volume is mounted", job.out.string(),
                                                settings.text("mount")),
                          .hint = fmt::format("--out {}/{}", settings.text("mount"), dns_label(job.name, 40))});
    }
    if (job.nodes > 1 && settings.text("token-secret").empty() && !pods_have_token_file(job, settings)) {
      problems.push_back(
          {.key = "--token-secret",
           .reason =
               "ranks in several pods meet only with a token that all of them know, and a file of this machine is "
               "in none of them",
           .hint = "kubectl create secret generic trireme-token --from-file=token=FILE, and --token-secret "
                   "trireme-token"});
    }
    if (job.nodes * job.ranks_per_node != job.ranks) {
      problems.push_back(
          {.key = "--ranks-per-node",
           .reason = fmt::format("{} pods of {} ranks are not {} ranks", job.nodes, job.ranks_per_node, job.ranks),
           .hint = "give --nodes and --ranks-per-node whose product is the number of ranks"});
    }
    if (!job.sweep.empty()) {
      problems.push_back({.key = "--sweep", .reason = "a JobSet is one run here", .hint = "use --slurm"});
    }
    return problems;
  }

  Submission prepare(const Job& job, const Settings& settings) const override {
    // Pods are called SET-JOB-0-INDEX-xxxxx: 63 letters in all, as a label of DNS.
    const std::string set = dns_label(job.name, 40);
    const std::string space = settings.text("namespace");
    std::string out = fmt::format(
        "# Written by trireme launch --jobset.\n"
        "apiVersion: jobset.x-k8s.io/v1alpha2\n"
        "kind: JobSet\n"
        "metadata:\n"
        "  name: {}\n"
        "{}"
        "spec:\n"
        "  failurePolicy:\n"
        "    maxRestarts: {}\n"  // of the whole set: ranks are of no use alone
        "  network:\n"
        "    enableDNSHostnames: true\n"
        "    subdomain: {}\n"
        "  replicatedJobs:\n"
        "  - name: {}\n"
        "    replicas: 1\n"
        "    template:\n"
        "      spec:\n"
        "        backoffLimit: 0\n"
        "        completionMode: Indexed\n"
        "        completions: {}\n"
        "        parallelism: {}\n"
        "        template:\n"
        "          spec:\n"
        "            restartPolicy: Never\n"
        "            terminationGracePeriodSeconds: {}\n"  // SIGTERM saves
        "            containers:\n"
        "            - name: trireme\n"
        "              image: {}\n"
        "              command: [\"sh\", \"-c\", {}]\n",
        yaml_text(set), space.empty() ? "" : fmt::format("  namespace: {}\n", yaml_text(space)),
        settings.number("restarts", 0), yaml_text(set), kReplicated, job.nodes, job.nodes,
        static_cast<int>(job.grace_seconds) + 30, yaml_text(settings.text("image")),
        yaml_text(pod_script(job, fmt::format("{}-{}-0-0.{}", set, kReplicated, set))));
    out += environment_of(job, settings);
    out += fmt::format("              ports:\n              - containerPort: {}\n", job.port);
    if (job.gpus || job.cores_per_rank > 0) {
      out += "              resources:\n                limits:\n";
      if (job.cores_per_rank > 0)
        out += fmt::format("                  cpu: \"{}\"\n", job.cores_per_rank * job.ranks_per_node);
      if (job.gpus)
        out +=
            fmt::format("                  {}: \"{}\"\n", yaml_text(settings.text("gpu-resource")), job.ranks_per_node);
    }
    out += fmt::format(
        "              volumeMounts:\n"
        "              - name: runs\n"
        "                mountPath: {}\n"
        "              - name: shared-memory\n"  // boards and NCCL need more than the 64 MB that containers have
        "                mountPath: /dev/shm\n"
        "            volumes:\n"
        "            - name: runs\n"
        "              persistentVolumeClaim:\n"
        "                claimName: {}\n"
        "            - name: shared-memory\n"
        "              emptyDir:\n"
        "                medium: Memory\n",
        yaml_text(settings.text("mount")), yaml_text(settings.text("claim")));
    return {.text = std::move(out), .command = {"kubectl", "apply", "-f", "-"}, .processes = {}};
  }

 private:
  static bool below(const std::filesystem::path& path, const std::filesystem::path& folder) {
    const std::string relative = path.lexically_normal().lexically_relative(folder.lexically_normal()).string();
    return path.is_absolute() && !relative.empty() && !relative.starts_with("..");
  }

  /// Whether TRIREME_TOKEN_FILE names a file of the volume.
  static bool pods_have_token_file(const Job& job, const Settings& settings) {
    return below(token_file(job), settings.text("mount"));
  }

  static std::string environment_of(const Job& job, const Settings& settings) {
    const std::string& secret = settings.text("token-secret");
    std::string out;
    for (const auto& [name, value] : job.environment) {
      // A path of this machine, which no pod has.
      if (name == kTokenFile && (!secret.empty() || !pods_have_token_file(job, settings))) continue;
      out += fmt::format("              - name: {}\n                value: {}\n", yaml_text(name), yaml_text(value));
    }
    // A variable and not a file: of a pod that runs as a user with a group, files of a secret are open to the group.
    if (!secret.empty())
      out += fmt::format(
          "              - name: TRIREME_TOKEN\n"
          "                valueFrom:\n"
          "                  secretKeyRef:\n"
          "                    name: {}\n"
          "                    key: token\n",
          yaml_text(secret));
    return out.empty() ? out : "              env:\n" + out;
  }

  /// What a pod runs: this node's ranks. A set that was started again resumes, and a first start finds no checkpoint.
  static std::string pod_script(const Job& job, const std::string& master) {
    std::vector<std::string> words = {job.program, "launch", job.recipe};
    for (const std::string& set : job.sets) words.insert(words.end(), {"--set", set});
    words.insert(words.end(), {"--out", job.out.string(), "--resume", "--ranks", std::to_string(job.ranks), "--nodes",
                               std::to_string(job.nodes), "--ranks-per-node", std::to_string(job.ranks_per_node),
                               "--master-addr", master, "--port", std::to_string(job.port)});
    return fmt::format("exec {} --node-rank \"$JOB_COMPLETION_INDEX\"", sh_line(words));
  }
};

}  // namespace

std::unique_ptr<const Launcher> make_jobset() { return std::make_unique<JobSet>(); }

}  // namespace trireme::launch
