//! The CPU time that a QEMU has used, by the kind of its threads, and that of a launcher with its
//! QEMU, from the host's `/proc`.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

/// The unit of time in `/proc/PID/stat`, which is the same on every Linux.
const TICK: Duration = Duration::from_millis(10);

/// The CPU time that the threads of a QEMU have used, in user mode and in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// The threads that run the guest's CPUs.
    pub vcpu: Duration,
    /// The main loop, which runs most of the devices.
    pub main_loop: Duration,
    /// All other threads, including those that have ended.
    pub other: Duration,
}

impl CpuTime {
    /// The CPU time that the QEMU with this process id has used until now. It has to run with
    /// `-name …,debug-threads=on`, which gives its threads the names that this function looks for.
    pub fn of_qemu(pid: u32) -> io::Result<CpuTime> {
        CpuTime::read(&Path::new("/proc").join(pid.to_string()), pid)
    }

    fn read(folder: &Path, pid: u32) -> io::Result<CpuTime> {
        let (mut vcpu, mut main_loop) = (Duration::ZERO, Duration::ZERO);
        for thread in fs::read_dir(folder.join("task"))? {
            let thread = thread?;
            // A thread may end during the loop.
            let Ok(Stat { name, time, .. }) = Stat::read(&thread.path()) else { continue };
            if name.starts_with("CPU ") {
                vcpu += time;
            } else if thread.file_name().to_str() == Some(&pid.to_string()) {
                main_loop += time;
            }
        }
        // Read last, so that it is not less than the sum of the threads.
        let whole = Stat::read(folder)?.time;
        Ok(CpuTime { vcpu, main_loop, other: whole.saturating_sub(vcpu + main_loop) })
    }

    /// The CPU time that a launcher and its guest have used until now, with all their threads: the
    /// process with this id, and its running children.
    pub fn of_launcher(pid: u32) -> io::Result<Duration> {
        CpuTime::of_family(Path::new("/proc"), pid)
    }

    fn of_family(folder: &Path, pid: u32) -> io::Result<Duration> {
        let mut sum = Stat::read(&folder.join(pid.to_string()))?.time;
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let is_process = entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok());
            // A process may end during the loop.
            if is_process
                && let Ok(stat) = Stat::read(&entry.path())
                && stat.parent == pid
            {
                sum += stat.time;
            }
        }
        Ok(sum)
    }

    /// The CPU time since `earlier`.
    pub fn since(&self, earlier: &CpuTime) -> CpuTime {
        CpuTime {
            vcpu: self.vcpu.saturating_sub(earlier.vcpu),
            main_loop: self.main_loop.saturating_sub(earlier.main_loop),
            other: self.other.saturating_sub(earlier.other),
        }
    }

    /// The CPU time of all threads.
    pub fn total(&self) -> Duration {
        self.vcpu + self.main_loop + self.other
    }
}

/// The contents of `/proc/PID/stat`, or of a thread's `stat`.
#[derive(Debug, PartialEq)]
struct Stat {
    name: String,
    parent: u32,
    time: Duration,
}

impl Stat {
    /// Reads the file `stat` in a folder.
    fn read(folder: &Path) -> io::Result<Stat> {
        Stat::parse(&fs::read_to_string(folder.join("stat"))?)
    }

    fn parse(text: &str) -> io::Result<Stat> {
        let stat = || {
            // The name is in parentheses, and may contain parentheses itself.
            let (_, rest) = text.split_once('(')?;
            let (name, rest) = rest.rsplit_once(')')?;
            // The rest begins with field 3. The parent is field 4, utime and stime 14 and 15.
            let mut numbers = rest.split_whitespace().map(|field| field.parse::<u32>().ok());
            let parent = numbers.nth(1)??;
            let time = TICK.checked_mul(numbers.nth(9)??.checked_add(numbers.next()??)?)?;
            Some(Stat { name: name.to_owned(), parent, time })
        };
        stat().ok_or_else(|| io::Error::other(format!("not a line of /proc/PID/stat: {text}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, user: u32, kernel: u32) -> String {
        format!("77 ({name}) S 1 2 3 4 5 6 7 8 9 10 {user} {kernel} 0 0 20 0 1 0 55 66\n")
    }

    #[test]
    fn a_line_gives_the_name_and_the_time_or_an_error() {
        let stat = Stat::parse(&line("CPU 0/TCG (1) x", 7, 5)).expect("a line");
        assert_eq!(stat, Stat { name: "CPU 0/TCG (1) x".into(), parent: 1, time: TICK * 12 });
        for wrong in ["", "77", "77 (name", "77 (name) S 1 2", &line("x", 1, 2)[..30]] {
            assert!(Stat::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn threads_are_told_apart_and_ended_ones_count() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: String| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        // The main thread has QEMU's name, which `-name process=` may change.
        write("task/77/stat", line("qemu-system-x86", 10, 20));
        write("task/78/stat", line("call_rcu", 0, 1));
        write("task/80/stat", line("CPU 0/TCG", 100, 3));
        write("task/81/stat", line("CPU 1/KVM", 200, 0));
        write("stat", line("qemu-system-x86", 320, 30));
        let time = CpuTime::read(folder.path(), 77).expect("it is all there");
        let expected = CpuTime { vcpu: TICK * 303, main_loop: TICK * 30, other: TICK * 17 };
        assert_eq!(time, expected);
        assert_eq!(time.total(), TICK * 350);
        assert_eq!(time.since(&time), CpuTime::default());
    }

    #[test]
    fn a_launcher_is_a_process_and_its_children() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |pid: &str, parent: u32, ticks: u32| {
            fs::create_dir(folder.path().join(pid)).expect("a folder");
            let stat = line("x", ticks, 1).replace("S 1 ", &format!("S {parent} "));
            fs::write(folder.path().join(pid).join("stat"), stat).expect("a file");
        };
        for (pid, parent, ticks) in
            [("7", 1, 10), ("8", 7, 20), ("9", 8, 40), ("10", 7, 80), ("self", 7, 160)]
        {
            write(pid, parent, ticks);
        }
        fs::create_dir(folder.path().join("11")).expect("a process that has just ended");
        assert_eq!(CpuTime::of_family(folder.path(), 7).expect("it is all there"), TICK * 113);
        assert!(CpuTime::of_family(folder.path(), 12).is_err(), "it has ended");
        assert!(CpuTime::of_launcher(std::process::id()).is_ok());
    }

    #[test]
    fn this_process_has_used_some() {
        let pid = std::process::id();
        let begun = CpuTime::of_qemu(pid).expect("its files");
        while CpuTime::of_qemu(pid).expect("its files").since(&begun).total() < TICK * 2 {}
    }
}
