"""Options that bench/gpu/run and tests/gpu/run share, and what they mean."""

import json
import sys
from pathlib import Path

import gpu_machine  # before eps_run
import eps_run
import part_report
import parts


def add_options(parser, seconds):
    parser.add_argument("--long", action="store_true", help="all parts, also those that take minutes")
    parser.add_argument("--seconds", type=float, default=seconds,
                        help="a part that would take longer is left out; 0: no limit. Default: %(default).0f")
    parser.add_argument("--rounds", type=int, default=1, help="of relay and resident, in turn. Default: 1")
    parser.add_argument("--host-memory", type=float, default=gpu_machine.host_bytes() / parts.GIB, metavar="GIB",
                        help="what the machine has. Default: what the system says, %(default).0f")
    parser.add_argument("--python", default=sys.executable, help="the one that has PyTorch. Default: this one")
    parser.add_argument("--ceilings", type=Path, metavar="REPORT.json",
                        help="an earlier report, whose ceilings count where they are not measured again")
    parser.add_argument("--list", action="store_true", help="names the parts, with the seconds that they want")
    parser.add_argument("part", nargs="*", metavar="PART", help="only these")


def new_bench(args, folder, device, tiny=False):
    known = json.loads(args.ceilings.read_text())["parts"]["ceilings"] if args.ceilings else None
    return parts.Bench(folder, device, tiny, args.host_memory * parts.GIB, args.rounds, args.python, known)


def run_command(args, parser, device, all_parts):
    """The exit code."""
    if args.list:
        for part in all_parts:
            when = "" if part.by_default else "   with --long, or by name"
            print(f"{part.name:<22} {part.about_seconds:4.0f} s{when}")
        return 0
    chosen = part_report.choose(all_parts, args.part, args.long, parser)
    try:
        report = part_report.Report(args.out, gpu_machine.probe(device), gpu_machine.machine())
    except gpu_machine.CannotRun as error:
        print(f"cannot run here: {error}")
        return eps_run.CANNOT_RUN_HERE
    return 1 if part_report.run_parts(chosen, report, args.seconds) else 0
