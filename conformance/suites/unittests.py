# SPDX-License-Identifier: BSD-2-Clause
"""Runs a module of pyverbs' tests and prints a line when a test begins and one when it ends.

Usage: unittests.py DEVICE ADDRESS DIRECTORY MODULE [TEST TO LEAVE OUT]...

The tests ask /sys and iproute2 for the interface of a device, its address and its partition key. The device has
ADDRESS and the default key; the software device has no entry in /sys.
"""
import os
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
        self.said = False
        say('begin', test.id())

    def end(self, test, *words):
        if not self.said:
            self.said = True
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


unittest.TestSuite(each(unittest.defaultTestLoader.loadTestsFromName('tests.' + module))).run(Result())
