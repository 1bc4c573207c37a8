-- job_groups: the group of each job that has one.
SELECT seq, "group" AS group_name FROM groups
