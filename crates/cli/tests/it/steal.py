"""Tries to read files of a server in every way that somebody thought of. Prints the ways that worked.

Arguments: the data directory, the server's process. Stands in the tool's folder. Harmless also where nothing holds it
back: whatever changes the system is done in a namespace that ends with its process.
"""
import ctypes, mmap, os, shutil, subprocess, sys

data, server = sys.argv[1], int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
names = ['signing-keys.json', 'api-key', 'reprise.db', 'reprise.db-wal', 'approver-key']
FDCWD = -100


def call(number, *arguments):
    result = libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), number)
    return result


def read(path):
    with open(path, 'rb') as file:
        return file.read(64)


def by_link(path):
    os.symlink(path, 'l')
    return read('l')


def by_hard_link(path):
    os.link(path, 'h')
    return read('h')


def by_rename(path):
    os.rename(path, 'r')
    try:
        return read('r')
    finally:
        os.rename('r', path)


def by_handle(path):
    place = os.open(path, os.O_PATH)
    return os.read(os.open('/proc/self/fd/%d' % place, os.O_RDONLY), 64)


def by_handle_of_folder(path):
    place = os.open(os.path.dirname(path), os.O_PATH)
    return os.read(os.open(os.path.basename(path), os.O_RDONLY, dir_fd=place), 64)


def by_link_of_handle(path):
    place = os.open(path, os.O_PATH)
    call(265, place, b'', FDCWD, b'e', 0x1000)
    return read('e')


def by_number(path):
    handle = (ctypes.c_uint8 * 136)()
    ctypes.c_uint32.from_buffer(handle).value = 128
    mount = ctypes.c_int()
    call(303, FDCWD, path.encode(), handle, ctypes.byref(mount), 0)
    return os.read(call(304, os.open('.', os.O_RDONLY), handle, 0), 64)


def by_descriptor_of_server(path):
    for number in os.listdir('/proc/%d/fd' % server):
        link = '/proc/%d/fd/%s' % (server, number)
        if os.readlink(link).startswith(data):
            return read(link)


def by_stolen_descriptor(path):
    handle = call(434, server, 0)
    for number in range(3, 64):
        try:
            return os.pread(call(438, handle, number, 0), 64, 0)
        except OSError:
            pass


def by_inherited_descriptor(path):
    for number in range(3, 1024):
        try:
            if os.readlink('/proc/self/fd/%d' % number).startswith(data):
                return os.pread(number, 64, 0)
        except OSError:
            pass


def by_ring(path):
    parameters = ctypes.create_string_buffer(120)
    call(425, 4, parameters)
    return b'a ring'


def by_memory_of_server(path):
    with open('/proc/%d/maps' % server) as maps:
        start = int(maps.readline().split('-')[0], 16)
    with open('/proc/%d/mem' % server, 'rb', 0) as memory:
        memory.seek(start)
        return memory.read(8)


def by_program_in_memory(path):
    program = os.memfd_create('cat', 0)
    with open(shutil.which('cat'), 'rb') as file:
        os.write(program, file.read())
    out = subprocess.run(['cat', path], executable='/proc/self/fd/%d' % program, pass_fds=[program], capture_output=True)
    return out.stdout[:64]


def by_mount(path):
    libc.unshare(0x10020000) and os._exit(1)
    os.mkdir('m')
    call(165, None, b'/', None, 0x44000, None)
    call(165, os.path.dirname(path).encode(), b'm', None, 4096, None)
    return read('m/' + os.path.basename(path))


def by_other_root(path):
    libc.unshare(0x10000000) and os._exit(1)
    os.chroot(os.path.dirname(path))
    return read('/' + os.path.basename(path))


def by_namespace_of_server(path):
    call(308, os.open('/proc/%d/ns/mnt' % server, os.O_RDONLY), 0)
    return read(path)


def by_disk(path):
    for disk in ['/dev/vda', '/dev/sda', '/dev/nvme0n1', '/dev/mem', '/proc/kcore']:
        try:
            return read(disk)
        except OSError:
            pass


def by_parent(path):
    return read('/proc/%d/root%s' % (os.getppid(), path)) or read('/proc/%d/environ' % os.getppid())


def by_grandparent(path):
    with open('/proc/%s/stat' % os.environ['SHELL_PARENT']) as stat:
        return stat and read('/proc/%s/root%s' % (os.environ['SHELL_PARENT'], path))


def by_map(path):
    with open(path, 'rb') as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)[:64]


def by_copy(path):
    shutil.copy(path, 'c')
    return read('c')


def by_mode(path):
    os.chmod(path, 0o600)
    return b'changed'


def by_the_program_itself(path):
    out = subprocess.run(['/proc/%d/exe' % server, 'log', 'export', '--data', data, 'x'], capture_output=True)
    return os.listdir('x') and b'exported' if out.returncode == 0 else b''


ways = {
    'absolute': read,
    'relative': lambda path: read(os.path.relpath(path)),
    'own root': lambda path: read('/proc/self/root' + path),
    'own folder': lambda path: read('/proc/self/cwd/' + os.path.relpath(path)),
    'root of server': lambda path: read('/proc/%d/root%s' % (server, path)),
    'folder of server': lambda path: read('/proc/%d/cwd/%s/%s' % (server, os.path.basename(data), os.path.basename(path))),
    **{name[3:].replace('_', ' '): way for name, way in list(globals().items()) if name.startswith('by_')},
}
for way, attempt in ways.items():
    for name in names:
        child = os.fork()
        if child == 0:
            found = False
            try:
                found = bool(attempt(os.path.join(data, name)))
            except (OSError, AttributeError, subprocess.SubprocessError):
                pass
            os._exit(0 if found else 1)
        worked = os.waitpid(child, 0)[1] == 0
        for left in ['l', 'h', 'e', 'c', 'm', 'x']:
            if os.path.isdir(left) and not os.path.islink(left):
                shutil.rmtree(left, ignore_errors=True)
            elif os.path.lexists(left):
                os.unlink(left)
        if worked:
            print(way, name, flush=True)
print('tried', len(ways))
