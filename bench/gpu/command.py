"""Options that bench/gpu/run and tests/gpu/run share, and what they mean."""

import json
import time
from pathlib import Path

import gpu_machine  # before eps_run
import clocks
import eps_run
import part_report
import parts
import processes

BEGAN = time.monotonic()
RUN_LOG = "runs.log"  # beside the report


def add_options(parser, seconds):
    parser.add_argument("--long", action="store_true", help="all parts, also those that take minutes")
    parser.add_argument("--tiny", action="store_true",
                        help="tiny shapes in place of the real ones: to see that all of it works")
    parser.add_argument("--seconds", type=float,
                        help="for all of it; a part that there is no time for is left out; 0: no limit. Default: "
                             + (f"{seconds:.0f}, and none with --long or named parts" if seconds else "0"))
    parser.add_argument("--rounds", type=int, default=1, help="of relay and resident, in turn. Default: 1")
    parser.add_argument("--host-memory", type=float, default=gpu_machine.host_bytes() / parts.GIB, metavar="GIB",
                        help="what the machine has, which bounds the models of the parts gpt-7b and largest. Give it "
                             "where memory is added as it is used, or a container has less than its host. Default: "
                             "MemTotal, %(default).0f")
    parser.add_argument("--python", help="the one that has PyTorch, and NVIDIA's libraries if the system has none. "
                                         "Default: this one, or another in the usual places that has PyTorch")
    parser.add_argument("--ceilings", type=Path, metavar="REPORT.json",
                        help="an earlier report of this machine: its ceilings count where they are not measured again, "
                             "and plans are made from the profiles beside it")
    parser.add_argument("--list", action="store_true", help="names the parts, with the seconds that they want")
    parser.add_argument("part", nargs="*", metavar="PART", help="only these, in this order")
    parser.set_defaults(default_seconds=seconds)


def new_bench(args, folder, device):
    if args.python is None and not args.list:
        args.python = gpu_machine.python_with_torch()
    return parts.Bench(folder, device, args.tiny, args.host_memory * parts.GIB, args.rounds, args.python,
                       args.out / RUN_LOG, args.out)


def take_earlier(bench, report, path):
    """What an earlier report says of this machine. A warning of the new one, if it is of another one."""
    try:
        known = json.loads(path.read_text())
        ceilings = known["parts"].get("ceilings", {})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise gpu_machine.CannotRun(f"--ceilings {path}: no report.json of an earlier run: "
                                    f"{type(error).__name__}: {error}") from None
    of, here = known.get("device"), report.head["device"]
    if of not in (None, here):
        report.warnings.append(f"--ceilings {path} is of another device ({of}), and left alone.")
        return
    bench.take_earlier(ceilings, path.parent)
    report.head["machine"]["ceilings and profiles of"] = f"{path}, {known.get('when', 'undated')}"


def begin_report(report, args, device):
    """Says on what all will run. Before anything runs: with the libraries that all will load."""
    gpu_machine.use_libraries_of(args.python)
    report.head["device"], warnings = gpu_machine.probe(device)
    report.head["machine"] = {**gpu_machine.machine(args.host_memory * parts.GIB), "PyTorch of": args.python}
    if device.startswith("cuda"):
        report.head["machine"].update(gpu_machine.libraries())
    report.warnings += [f"The worker warns: {warning}" for warning in warnings]
    for said in (report.head["device"], *(f"{key}: {value}" for key, value in report.head["machine"].items()),
                 *report.warnings):
        print(said, flush=True)
    (args.out / RUN_LOG).unlink(missing_ok=True)  # an earlier report's
    report.write()


def run_command(args, parser, device, bench, all_parts):
    """The exit code."""
    if args.list:
        for part in all_parts:
            when = "" if part.by_default else "   with --long, or by name"
            print(f"{part.name:<22} {part.about_seconds:4.0f} s{when}")
        return 0
    chosen = part_report.choose(all_parts, args.part, args.long, parser)
    if args.seconds is None:
        args.seconds = 0 if args.part or args.long else args.default_seconds
    report = part_report.Report(args.out, device, {})
    with part_report.signals_interrupt():
        try:
            begin_report(report, args, device)
            if args.ceilings:
                take_earlier(bench, report, args.ceilings)
                report.write()
            with clocks.Clocks(device, args.out) as sampled:
                chosen = [sampled.beside(part, report) for part in chosen]
                return 1 if part_report.run_parts(chosen, report, args.seconds, BEGAN) else 0
        except gpu_machine.CannotRun as error:
            print(f"cannot run here: {error}")
            return eps_run.CANNOT_RUN_HERE
        except part_report.Interrupted as error:
            report.warnings.append(f"Ended by {error} before the first part.")
            report.write()
            return 1
        finally:
            processes.end_all()
