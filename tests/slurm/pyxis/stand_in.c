/*
 * A stand-in for NVIDIA's pyxis and enroot, for sandboxes: a SPANK plugin with pyxis' options (0.24, args.c),
 * which refuses what pyxis refuses in its words, and runs a step's tasks in a file tree of their own.
 *
 * Where it differs: it works as root instead of in a user namespace. An "image" is a tar file: one that a path
 * names, or FOLDER/NAME.tar of the plugin's registry=FOLDER, with '/', '#' and ':' in the name written as '_'.
 * The registry wants a password from the user's .credentials, and has one user, "anybody". What is accepted, but
 * not imitated (--container-save, --container-remap-root, --container-entrypoint, --container-unshare), is an error.
 *
 * In plugstack.conf: required stand_in.so data=FOLDER registry=FOLDER spool=FOLDER container_scope=job|global
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(pyxis, 1)

#define REFUSED -1
#define SIZE 4096

enum option { IMAGE, MOUNTS, WORKDIR, NAME, SAVE, ENV, UNSHARE, TEXTS };
enum { HOME_, REMAP, ENTRYPOINT, ENTRYPOINT_LOG, WRITABLE, FLAGS };

static const char *text_names[TEXTS] = {"container-image", "container-mounts", "container-workdir",
                                        "container-name",  "container-save",   "container-env",
                                        "container-unshare"};
static char *texts[TEXTS];
static int flags[FLAGS] = {-1, -1, -1, -1, -1};
static const char *mode = "auto"; /* what follows the name: auto, create, exec, no_exec */

static const char *data = "", *registry = "", *spool = "";
static bool job_scope;

static bool running, exists, failed; /* of the container, before the step's tasks */
static char tree[SIZE], lock[SIZE + 8], temporary[SIZE];
static uint32_t job, step;
static uid_t uid;
static gid_t gid;

static int refuse(const char *format, const char *value)
{
	slurm_error(format, value);
	return REFUSED;
}

static bool one_of(const char *word, const char *const *known)
{
	for (; *known; ++known)
		if (strcmp(word, *known) == 0 || (strchr(*known, '=') && strncmp(word, *known, strlen(*known)) == 0))
			return true;
	return false;
}

/* One mount as SRC[:DST[:FLAGS]]; the parts are cut out of `text`. */
static int parse_mount(char *text, char **source, char **target, char **options)
{
	static const char *const known[] = {"ro", "rw", "nosuid", "nodev", "noexec", "bind", "rbind", "private",
	                                    "rprivate", "slave", "rslave", "nofail", "silent", "x-create=", NULL};
	char *rest = text;
	*source = *target = strsep(&rest, ":");
	*options = "";
	if (**source == '\0')
		return refuse("pyxis: --container-mounts: invalid format: %s", text);
	if (rest) {
		*target = strsep(&rest, ":");
		if (**target == '\0')
			return refuse("pyxis: --container-mounts: invalid format: %s", text);
		*options = rest ? rest : "";
	}
	if (strspn(*source, "./") == 0)
		return refuse("pyxis: mount source must be a relative path, an absolute path, \"tmpfs\" or \"umount\"%s", "");
	if (strspn(*target, "./") == 0)
		return refuse("pyxis: mount target must be a relative path or an absolute path%s", "");
	char *copy = strdup(*options), *words = copy, *word;
	while ((word = strsep(&words, "+")))
		if (*word && !one_of(word, known))
			return refuse("pyxis: stand-in: no mount has the flag %s", word);
	free(copy);
	return 0;
}

static int check_mounts(const char *value)
{
	if (strpbrk(value, "\"$`\\")) /* pyxis writes mounts into a line of bash, in double quotes. */
		return refuse("pyxis: stand-in: --container-mounts: bash would read %s otherwise", value);
	char *copy = strdup(value), *mounts = copy, *mount, *source, *target, *options;
	while ((mount = strsep(&mounts, ",")))
		if (parse_mount(mount, &source, &target, &options))
			return REFUSED;
	free(copy);
	return 0;
}

static int check_name(char *value)
{
	static const char *const known[] = {"auto", "create", "exec", "no_exec", NULL};
	char *colon = strchr(value, ':');
	if (value[0] == '\0' || colon == value)
		return refuse("pyxis: --container-name: empty name%s", "");
	if (colon) {
		*colon = '\0';
		mode = colon[1] ? colon + 1 : "auto";
	}
	if (!one_of(mode, known))
		return refuse("pyxis: --container-name: flag must be \"auto\", \"create\", \"exec\" or \"no_exec\"%s", "");
	return 0;
}

static int on_text(int option, const char *value, int remote)
{
	if (value == NULL || *value == '\0')
		return refuse("pyxis: --%s: argument required", text_names[option]);
	if (texts[option]) /* Slurm may tell the same value twice; a name with a flag is not equal to itself (args.c). */
		return strcmp(texts[option], value) == 0
		               ? 0
		               : refuse("pyxis: --%s specified multiple times", text_names[option]);
	texts[option] = strdup(value);
	if (option == MOUNTS)
		return check_mounts(value);
	if (option == NAME)
		return check_name(texts[NAME]);
	if (option == SAVE || option == UNSHARE)
		return refuse("pyxis: stand-in: --%s is not imitated", text_names[option]);
	return 0;
}

static int on_flag(int option, const char *value, int remote)
{
	static const char *const both[FLAGS] = {
	        "both --container-mount-home and --no-container-mount-home were specified",
	        "both --container-remap-root and --no-container-remap-root were specified",
	        "both --container-entrypoint and --no-container-entrypoint were specified", "",
	        "both --container-writable and --container-readonly were specified"};
	int which = option / 2, on = option % 2;
	if (flags[which] != -1 && flags[which] != on)
		return refuse("pyxis: %s", both[which]);
	flags[which] = on;
	if (on && (which == REMAP || which == ENTRYPOINT))
		return refuse("pyxis: stand-in: %s is not imitated", which == REMAP ? "root" : "an entrypoint");
	return 0;
}

#define TEXT(name, arguments, option) {name, arguments, "[pyxis] stand-in", 1, option, on_text}
#define FLAG(name, which, on) {name, NULL, "[pyxis] stand-in", 0, 2 * (which) + (on), on_flag}

static struct spank_option options[] = {
        TEXT("container-image", "[USER@][REGISTRY#]IMAGE[:TAG]|PATH", IMAGE),
        TEXT("container-mounts", "SRC:DST[:FLAGS][,SRC:DST...]", MOUNTS),
        TEXT("container-workdir", "PATH", WORKDIR),
        TEXT("container-name", "NAME", NAME),
        TEXT("container-save", "PATH", SAVE),
        TEXT("container-env", "NAME[,NAME...]", ENV),
        TEXT("container-unshare", "NS[,NS...]", UNSHARE),
        FLAG("container-mount-home", HOME_, 1),
        FLAG("no-container-mount-home", HOME_, 0),
        FLAG("container-remap-root", REMAP, 1),
        FLAG("no-container-remap-root", REMAP, 0),
        FLAG("container-entrypoint", ENTRYPOINT, 1),
        FLAG("no-container-entrypoint", ENTRYPOINT, 0),
        FLAG("container-entrypoint-log", ENTRYPOINT_LOG, 1),
        FLAG("container-writable", WRITABLE, 1),
        FLAG("container-readonly", WRITABLE, 0),
        SPANK_OPTIONS_TABLE_END};

static int configure(int count, char **words)
{
	for (int i = 0; i < count; ++i) {
		char *value = strchr(words[i], '=');
		if (!value)
			return refuse("pyxis: unknown configuration option: %s", words[i]);
		++value;
		if (strncmp(words[i], "data=", 5) == 0)
			data = strdup(value);
		else if (strncmp(words[i], "registry=", 9) == 0)
			registry = strdup(value);
		else if (strncmp(words[i], "spool=", 6) == 0)
			spool = strdup(value);
		else if (strncmp(words[i], "container_scope=", 16) == 0)
			job_scope = strcmp(value, "job") == 0;
		else
			return refuse("pyxis: unknown configuration option: %s", words[i]);
	}
	return 0;
}

int slurm_spank_init(spank_t spank, int count, char **words)
{
	spank_context_t context = spank_context();
	if (configure(count, words))
		return REFUSED;
	if (context == S_CTX_LOCAL || context == S_CTX_REMOTE) /* sbatch_support=false: not sbatch and salloc */
		for (struct spank_option *option = options; option->name; ++option)
			if (spank_option_register(spank, option) != ESPANK_SUCCESS)
				return REFUSED;
	return 0;
}

/* pyxis takes PYXIS_CONTAINER_IMAGE and its like for options that are not given. */
static int take_environment(spank_t spank)
{
	for (int option = 0; option < TEXTS; ++option) {
		char name[64] = "PYXIS_", value[SIZE];
		for (size_t i = 0; text_names[option][i]; ++i) {
			char letter = text_names[option][i];
			name[6 + i] = letter == '-' ? '_' : letter - 'a' + 'A';
		}
		bool there;
		if (spank_context() == S_CTX_REMOTE)
			there = spank_getenv(spank, name, value, sizeof value) == ESPANK_SUCCESS;
		else
			there = getenv(name) && snprintf(value, sizeof value, "%s", getenv(name)) >= 0;
		if (there && !texts[option] && on_text(option, value, 0))
			return REFUSED;
	}
	return 0;
}

static bool enabled(void) { return texts[IMAGE] || texts[NAME]; }

static bool is_locked(const char *file)
{
	int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	bool held = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0;
	close(fd);
	return held;
}

int slurm_spank_init_post_opt(spank_t spank, int count, char **words)
{
	if (spank_context() == S_CTX_ALLOCATOR || take_environment(spank))
		return spank_context() == S_CTX_ALLOCATOR ? 0 : REFUSED;
	if (!enabled() && texts[MOUNTS])
		slurm_error("pyxis: ignoring --container-mounts because neither --container-image nor --container-name is set");
	if (!enabled() || spank_context() != S_CTX_REMOTE)
		return 0;
	spank_get_item(spank, S_JOB_UID, &uid);
	spank_get_item(spank, S_JOB_GID, &gid);
	spank_get_item(spank, S_JOB_ID, &job);
	spank_get_item(spank, S_JOB_STEPID, &step);
	char of_job[32] = "", unnamed[64];
	if (job_scope)
		snprintf(of_job, sizeof of_job, "%u_", job);
	snprintf(unnamed, sizeof unnamed, "%u.%u", job, step);
	char home[SIZE / 2];
	snprintf(home, sizeof home, "%s/%u", data, uid);
	mkdir(data, 0755);
	mkdir(home, 0700);
	if (chown(home, uid, gid))
		return refuse("pyxis: couldn't chown %s", home);
	snprintf(tree, sizeof tree, "%s/pyxis_%s%s", home, of_job, texts[NAME] ? texts[NAME] : unnamed);
	snprintf(lock, sizeof lock, "%s.lock", tree);
	snprintf(temporary, sizeof temporary, "%s/tmp.%s", home, unnamed);
	exists = access(tree, F_OK) == 0;
	running = is_locked(lock);
	return 0;
}

/* Errors of this moment do not reach srun: they are told by the tasks. */
int slurm_spank_user_init(spank_t spank, int count, char **words)
{
	if (!enabled() || !texts[NAME])
		return 0;
	failed = true;
	if (strcmp(mode, "create") == 0 && exists)
		slurm_error("pyxis: error: \"create\" flag was passed to --container-name but the container already exists");
	else if (strcmp(mode, "exec") == 0 && !running)
		slurm_error("pyxis: error: \"exec\" flag was passed to --container-name but the container is not running");
	else if (!exists && !texts[IMAGE])
		slurm_error("pyxis: error: a container with name \"%s\" does not exist, and --container-image is not set",
		            strrchr(tree, '/') + 1);
	else
		failed = false;
	running = running && strcmp(mode, "no_exec") != 0;
	if (running && texts[MOUNTS]) {
		slurm_spank_log("pyxis: ignoring --container-mounts when attaching to a running container");
		texts[MOUNTS] = NULL;
	}
	return 0;
}

/* Run a program as the user; 0 if it ended with 0. */
static int run_as(uid_t user, gid_t group, char *const command[])
{
	int status = -1;
	pid_t child = fork();
	if (child == 0) {
		if (setgid(group) == 0 && setuid(user) == 0)
			execv(command[0], command);
		_exit(127);
	}
	return child < 0 || waitpid(child, &status, 0) < 0 ? -1 : status;
}

/* The registry lets in who has a password for "anybody" in .credentials, as enroot's import(1) finds it. */
static bool is_let_in(spank_t spank)
{
	char folder[SIZE], file[SIZE + 32], line[SIZE];
	if (spank_getenv(spank, "ENROOT_CONFIG_PATH", folder, sizeof folder) != ESPANK_SUCCESS) {
		spank_getenv(spank, "HOME", folder, sizeof folder);
		strncat(folder, "/.config/enroot", sizeof folder - strlen(folder) - 1);
	}
	snprintf(file, sizeof file, "%s/.credentials", folder);
	FILE *credentials = fopen(file, "r");
	bool found = false;
	while (credentials && fgets(line, sizeof line, credentials))
		found = found || strstr(line, " login anybody password ");
	if (credentials)
		fclose(credentials);
	return found;
}

static int import(spank_t spank)
{
	char image[SIZE], record[SIZE];
	const char *name = texts[IMAGE];
	bool is_file = strspn(name, "./") > 0;
	snprintf(image, sizeof image, "%s", name);
	if (!is_file) {
		uint32_t tasks = 0;
		if (spank_get_item(spank, S_JOB_TOTAL_TASK_COUNT, &tasks) == ESPANK_SUCCESS && tasks <= 1)
			slurm_spank_log("pyxis: importing docker image: %s", name);
		int start = snprintf(image, sizeof image, "%s/", registry);
		snprintf(image + start, sizeof image - start, "%s.tar", name);
		for (char *letter = image + start; *letter; ++letter)
			if (strchr("/#:", *letter))
				*letter = '_';
	}
	if (!is_file && !is_let_in(spank)) {
		slurm_error("pyxis: failed to import docker image: %s", name);
		slurm_error("pyxis: printing enroot log file:");
		slurm_error("pyxis:     [ERROR] URL https://registry/v2/ returned error code: 401 Unauthorized");
		return REFUSED;
	}
	mkdir(tree, 0755);
	if (chown(tree, uid, gid) ||
	    run_as(uid, gid, (char *const[]){"/bin/tar", "-xf", image, "-C", tree, NULL}) != 0) {
		rmdir(tree);
		return refuse("pyxis: failed to create container filesystem for image: %s", name);
	}
	if (!is_file)
		slurm_spank_log("pyxis: imported docker image: %s", name);
	/* For tests: every import of this node. */
	snprintf(record, sizeof record, "%s/imports", data);
	FILE *imports = fopen(record, "a");
	fprintf(imports, "%u.%u %s %s\n", job, step, strrchr(tree, '/') + 1, name);
	return fclose(imports);
}

/* Make an empty folder or file, with the folders above it. It is trusted: links in the image are relative. */
static void make_target(const char *path, bool is_folder)
{
	char above[2 * SIZE];
	for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		snprintf(above, sizeof above, "%.*s", (int)(slash - path), path);
		mkdir(above, 0755);
	}
	if (is_folder)
		mkdir(path, 0755);
	else
		close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
}

static int bind(const char *source, const char *target, bool read_only)
{
	char inside[2 * SIZE];
	struct stat found;
	if (stat(source, &found) != 0)
		return refuse("pyxis: --container-mounts: source path does not exist: %s", source);
	snprintf(inside, sizeof inside, "%s/%s", tree, target);
	make_target(inside, S_ISDIR(found.st_mode));
	if (mount(source, inside, NULL, MS_BIND | MS_REC, NULL) ||
	    (read_only && mount(NULL, inside, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL))) {
		slurm_error("pyxis:     enroot-mount: failed to mount: %s at %s: %s", source, inside, strerror(errno));
		return REFUSED;
	}
	return 0;
}

/* In fstab(5) a space is \040. */
static char *without_escapes(char *path)
{
	for (char *escape; (escape = strstr(path, "\\040"));) {
		*escape = ' ';
		memmove(escape + 1, escape + 4, strlen(escape + 4) + 1);
	}
	return path;
}

/* What the image's /etc/fstab asks for (enroot's image format). */
static int bind_fstab(void)
{
	char file[SIZE + 32], line[SIZE], source[SIZE], target[SIZE];
	snprintf(file, sizeof file, "%s/etc/fstab", tree);
	FILE *fstab = fopen(file, "r");
	int status = 0;
	while (fstab && !status && fgets(line, sizeof line, fstab))
		if (sscanf(line, "%s %s", source, target) == 2)
			status = bind(without_escapes(source), without_escapes(target), true);
	if (fstab)
		fclose(fstab);
	return status;
}

static int bind_all(spank_t spank)
{
	/* enroot's 10-system.fstab and 20-config.fstab. */
	static const char *const system[] = {"/proc", "/sys", "/dev", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf"};
	for (size_t i = 0; i < sizeof system / sizeof *system; ++i)
		if (access(system[i], F_OK) == 0 && bind(system[i], system[i], false))
			return REFUSED;
	/* A new tmpfs at each start; its tasks share it. */
	mkdir(temporary, 0755);
	if (chown(temporary, uid, gid) || bind(temporary, "/tmp", false) || bind_fstab())
		return REFUSED;
	/* enroot's hook 50-slurm-pmi.sh: PMIX_SERVER_TMPDIR. */
	char pmix[SIZE], home[SIZE];
	snprintf(pmix, sizeof pmix, "%s/pmix.%u.%u", spool, job, step);
	if (access(pmix, F_OK) == 0 && bind(pmix, pmix, false))
		return REFUSED;
	if (flags[HOME_] == 1 && spank_getenv(spank, "HOME", home, sizeof home) == ESPANK_SUCCESS && bind(home, home, false))
		return REFUSED;
	char *mounts = texts[MOUNTS] ? strdup(texts[MOUNTS]) : NULL, *one, *source, *target, *words;
	while (mounts && (one = strsep(&mounts, ","))) {
		if (parse_mount(one, &source, &target, &words))
			return REFUSED;
		bool read_only = strncmp(words, "ro", 2) == 0 || strstr(words, "+ro");
		if (bind(source, target, read_only))
			return REFUSED;
	}
	return 0;
}

static int enter(spank_t spank)
{
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount(tree, tree, NULL, MS_BIND, NULL))
		return refuse("pyxis: couldn't make a mount namespace for %s", tree);
	if (bind_all(spank)) {
		slurm_error("pyxis: container start failed with error code: 1");
		return REFUSED;
	}
	if (flags[WRITABLE] != 1 && mount(NULL, tree, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL))
		return refuse("pyxis: couldn't make %s read-only", tree);
	if (chdir(tree) || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH))
		return refuse("pyxis: enroot-switchroot: failed to switch root: %s", strerror(errno));
	if (chdir(texts[WORKDIR] ? texts[WORKDIR] : "/"))
		return refuse("pyxis: couldn't chdir to %s", texts[WORKDIR]);
	return 0;
}

int slurm_spank_task_init_privileged(spank_t spank, int count, char **words)
{
	if (!enabled())
		return 0;
	if (failed)
		return REFUSED;
	/* Held by the tasks for as long as they run: what holds it is a running container. */
	int held = open(lock, O_RDWR | O_CREAT, 0666), making = open(data, O_RDONLY | O_CLOEXEC);
	flock(making, LOCK_EX);
	int status = access(tree, F_OK) == 0 ? 0 : import(spank);
	close(making);
	flock(held, LOCK_SH);
	return status ? status : enter(spank);
}

static bool is_kept(const char *name)
{
	char *names = texts[ENV] ? strdup(texts[ENV]) : NULL, *one;
	while (names && (one = strsep(&names, ",")))
		if (strcmp(one, name) == 0)
			return true;
	return false;
}

/* As the user, inside: the image's variables go before the job's. */
int slurm_spank_task_init(spank_t spank, int count, char **words)
{
	static const char *const removed[] = {"LANG", "LANGUAGE", "LC_ALL"};
	if (!enabled())
		return 0;
	for (size_t i = 0; i < sizeof removed / sizeof *removed; ++i)
		if (!is_kept(removed[i]))
			spank_unsetenv(spank, removed[i]);
	char line[SIZE];
	FILE *environment = fopen("/etc/environment", "r");
	while (environment && fgets(line, sizeof line, environment)) {
		char *value = line, *name = strsep(&value, "=");
		if (value && !is_kept(name)) {
			value[strcspn(value, "\n")] = '\0';
			spank_setenv(spank, name, value, 1);
		}
	}
	if (environment)
		fclose(environment);
	return 0;
}

static void remove_all(const char *pattern)
{
	glob_t found;
	if (glob(pattern, 0, NULL, &found) == 0)
		for (size_t i = 0; i < found.gl_pathc; ++i)
			run_as(0, 0, (char *const[]){"/bin/rm", "-rf", "--one-file-system", found.gl_pathv[i], NULL});
	globfree(&found);
}

/* At a step's end its unnamed container is removed, a named one is kept. */
int slurm_spank_exit(spank_t spank, int count, char **words)
{
	if (!enabled() || spank_context() != S_CTX_REMOTE)
		return 0;
	remove_all(temporary);
	if (!texts[NAME]) {
		remove_all(tree);
		remove_all(lock);
	}
	return 0;
}

/* With container_scope=job, at a job's end its named containers too. */
int slurm_spank_job_epilog(spank_t spank, int count, char **words)
{
	char pattern[SIZE];
	if (configure(count, words) || !job_scope)
		return 0;
	spank_get_item(spank, S_JOB_ID, &job);
	snprintf(pattern, sizeof pattern, "%s/*/pyxis_%u_*", data, job);
	remove_all(pattern);
	return 0;
}
