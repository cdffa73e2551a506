"""Reads a JobSet from standard input and holds it against the published schemas; prints what is wrong and exits 1 if anything is.

The Job inside is checked strictly by kubernetes-validate, the JobSet around it by the models of kubeflow-trainer-api. Exits 77 with
a sentence where these packages are missing: pip install kubernetes-validate kubeflow-trainer-api pyyaml.
"""
import sys

try:
    import kubernetes_validate
    import yaml
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
    from pydantic import ValidationError
except ImportError as error:
    print(f"validate_jobset: {error}; skipped (pip install kubernetes-validate kubeflow-trainer-api pyyaml)")
    sys.exit(77)


def unknown_keys(given, read, path):
    """Keys that a model drops: it takes what it does not know for nothing."""
    if isinstance(given, dict):
        read = read if isinstance(read, dict) else {}
        for key, value in given.items():
            if key not in read:
                yield f"{path}.{key}"
            else:
                yield from unknown_keys(value, read[key], f"{path}.{key}")
    elif isinstance(given, list):
        for i, (one, other) in enumerate(zip(given, read if isinstance(read, list) else [])):
            yield from unknown_keys(one, other, f"{path}[{i}]")


def main():
    manifest = yaml.safe_load(sys.stdin)
    problems = []
    try:
        model = JobsetV1alpha2JobSet.from_dict(manifest)
        problems += [f"no field of a JobSet: {key}" for key in unknown_keys(manifest, model.to_dict(), "jobset")]
    except ValidationError as error:
        problems.append(str(error))
    for replicated in manifest["spec"]["replicatedJobs"]:
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": replicated["template"]["spec"]}
        try:
            kubernetes_validate.validate(job, "1.30", strict=True)
        except kubernetes_validate.ValidationError as error:
            problems.append(f"{'.'.join(map(str, error.path))}: {error.message}")
    for problem in problems:
        print(problem)
    print(f"{manifest['metadata']['name']}: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
