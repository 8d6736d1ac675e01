# SPDX-License-Identifier: BSD-2-Clause
"""Runs modules of pyverbs' tests and prints a line when a test begins and one when it ends.

Usage: unittests.py DEVICE ADDRESS DIRECTORY MODULE[,MODULE]... [TEST TO LEAVE OUT]...

The tests ask /sys and iproute2 for the interface of a device, its address and its partition key. The device has
ADDRESS and the default key; the software device has no entry in /sys.

With GOVERBS_PYVERBS=gentle, garbage stays: that of pyverbs 56.1 in Python 3.13 is freed in an order in which a
completion queue is destroyed after its context. With GOVERBS_PYVERBS=steady, and so then, sizes at random are the same
in every run.
"""
import gc
import os
import random
import sys
import unittest

device, address, directory, module, *without = sys.argv[1:]
sys.path.insert(0, directory)
sys.path.insert(0, os.path.join(directory, 'tests'))
sys.argv = ['run_tests.py', '--dev', device]

from args_parser import parser
import tests.base
import tests.utils

parser.parse_args()
mode = os.environ.get('GOVERBS_PYVERBS', '')
if mode == 'gentle':
    gc.disable()


def get_ip_mac(self, dev, port, idx):
    self.args.append([dev, port, idx, address, '00:00:00:00:00:00'])


for name in ('_get_ip_mac', '_add_ip_mac'):
    if hasattr(tests.base.RDMATestCase, name):
        setattr(tests.base.RDMATestCase, name, get_ip_mac)


if hasattr(tests.utils, 'get_pkey_from_kernel'):
    tests.utils.get_pkey_from_kernel = lambda device, port, index: 0xffff


def say(*words):
    """Writes a line at once: children of tests write between."""
    line = '\t'.join(str(w).replace('\n', '\\n').replace('\t', ' ') for w in words)
    os.write(1, f'\n{line}\n'.encode())


class Result(unittest.TestResult):
    def startTest(self, test):
        super().startTest(test)
        self.reported = False
        if mode:
            random.seed(test.id())
        say('begin', test.id())

    def end(self, test, *words):
        if not self.reported:
            self.reported = True
            say(words[0], test.id(), *words[1:])

    def addSuccess(self, test):
        self.end(test, 'pass')

    def addSkip(self, test, reason):
        self.end(test, 'skip', reason)

    def addError(self, test, err):
        self.end(test, 'fail', self._exc_info_to_string(err, test))

    addFailure = addError

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.addError(test, err)


def each(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from each(test)
        elif test.id() not in without:
            yield test


names = ['tests.' + name for name in module.split(',')]
unittest.TestSuite(each(unittest.defaultTestLoader.loadTestsFromNames(names))).run(Result())
if mode == 'gentle':
    os._exit(0)
